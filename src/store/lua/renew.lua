-- Moves leases of jobs of one queue, each only if it is held under its fence.
-- ARGV: now, then per job 3: id, head (fence 8, lease 8, started_ago 8 signed), progress or ''
-- Returns now, then per job 1 = moved, 2 = moved and asked to stop, 0 = lost, -1 = no such task.
local now = clock(ARGV[1])
local out = {int(now)}
go_though_full(KEYS[3])
for i = 2, #ARGV, 3 do
  local id, head, progress = ARGV[i], ARGV[i + 1], ARGV[i + 2]
  local key = KEYS[15] .. id
  local t = ask('HMGET', key, 'stint', 'state', 'msg')
  local f = t[1]
  local verdict = t[3] and 0 or -1
  if f and #f >= 121 and sub(f, 66, 73) == sub(head, 1, 8) and holds(f, t[2], call('ZSCORE', KEYS[3], id), t[3]) then
    local lease = lease_end(ARGV[1], now, at8(head, 9))
    local ago = unpack_s('>i8', head, 17)
    local state, run, first, skips = sub(f, 65, 65), sub(f, 82, 89), sub(f, 41, 48), sub(f, 3, 3)
    if ago >= 0 then
      state, skips = '\3', '\0'
      if run == ZERO8 then run = u8(now - ago) end
      if first == ZERO8 then first = run end
    end
    call('ZADD', KEYS[3], 'XX', sec(lease), id)
    call('HSET', key, 'stint', sub(f, 1, 2) .. skips .. sub(f, 4, 40) .. first .. sub(f, 49, 64) .. state .. sub(f, 66, 73) ..
      u8(lease) .. run .. sub(f, 90))
    if progress ~= '' then call('HSET', key, 'stint_progress', progress) end
    verdict = has(byte(f, 2), CANCEL) and 2 or 1
  end
  out[#out + 1] = verdict
end
return out
