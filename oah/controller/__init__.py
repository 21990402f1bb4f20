"""The controller process: which service ticks how often, leader only or not."""
