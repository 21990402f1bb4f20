-- Whether a session's own record agrees with an entry of a ready set (`ws` nil: of the set of all workspaces by age).
-- uses: session ring

local function confirms(s, lane, class, ws)
  return s.state == 'ready' and s.lane == lane and s.class == class and (not ws or s.ws == ws)
end

local function whole(s)
  local field = ring_field(s.lane, s.class)
  return call('ZSCORE', key_since(s.lane, s.class), s.id) and call('ZSCORE', key_ready(s.lane, s.class, s.ws), s.id)
    and (call('ZSCORE', key_ring(s.lane, s.class), s.ws) or call('SISMEMBER', key_capped_rings(s.ws), field) == 1)
end
