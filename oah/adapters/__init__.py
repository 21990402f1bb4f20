"""One home per outside thing; foreign exceptions become ours at this rim. Adapters do not import each other."""
