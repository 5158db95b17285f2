-- Failed and cancelled jobs of one queue wait again, with a new budget.
-- ARGV: now, then ids
-- Returns now, then per job 1 = done, 2 = not in that state, 3 = another job holds its key, 0 = no such task.
local now = clock(ARGV[1])
local out = {int(now)}
all_sound()

local function one(id)
  local key = KEYS[15] .. id
  local t = ask('HMGET', key, 'msg', 'stint', 'state', 'unique_key')
  local f, lock = t[2], t[4]
  if not t[1] then return 0 end
  if t[3] ~= 'archived' then return 2 end
  if not f or #f < 64 then f = foreign(now) end
  local flags = byte(f, 2)
  if has(flags, ACTIVE) and lock and lock ~= '' then
    local who = call('GET', lock)
    if who and who ~= id then return 3 end
    call('SET', lock, id, 'EX', 30 * 86400)
  end
  if has(flags, CANCEL) then flags = flags - CANCEL end
  call('SREM', KEYS[13], id)
  call('ZREM', KEYS[7], id)
  call('ZREM', KEYS[14], id)
  call('LPUSH', KEYS[1], id)
  call('HSET', key, 'msg', msg_set(t[1], {[6] = ''}), 'state', 'pending', 'pending_since', ns(now), 'stint',
    char(1, flags, 0) .. sub(f, 4, 16) .. ZERO8 .. sub(f, 25, 32) .. u8(now) .. sub(f, 41))
  return 1
end

for i = 2, #ARGV do out[i] = one(ARGV[i]) end
return out
