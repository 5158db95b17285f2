-- Removes ended jobs of one queue.
-- ARGV: ids
-- Returns per job 0 = no such task, 2 = it has not ended, or {1, result_ref or '', ended attempts or ''}
local out = {}
for i = 1, #ARGV do
  local id = ARGV[i]
  local key = KEYS[15] .. id
  local t = ask('HMGET', key, 'msg', 'state', 'unique_key', 'stint_ref', 'stint_runs')
  if not t[1] then
    out[i] = 0
  elseif t[2] ~= 'archived' and t[2] ~= 'completed' then
    out[i] = 2
  else
    call('ZREM', KEYS[t[2] == 'archived' and 7 or 6], id)
    call('ZREM', KEYS[14], id)
    call('SREM', KEYS[13], id)
    if t[3] then unlock(t[3], id) end
    call('DEL', key)
    out[i] = {1, t[4] or '', t[5] or ''}
  end
end
return out
