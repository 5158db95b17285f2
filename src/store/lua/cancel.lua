-- Cancels waiting jobs of one queue, and asks held ones to stop.
-- ARGV: now, then ids
-- Returns now, then per job 1 = cancelled, 2 = asked, 3 = it has ended, 0 = no such task.
local now = clock(ARGV[1])
local now_s, out = floor(now / 1000000), {int(now)}
all_sound()

local function take_out(id, key, state)
  if state == 'pending' then
    call('LREM', KEYS[1], 0, id)
  elseif state == 'scheduled' then
    call('ZREM', KEYS[4], id)
  elseif state == 'retry' then
    call('ZREM', KEYS[5], id)
  elseif state == 'aggregating' then
    call('ZREM', sub(KEYS[15], 1, -3) .. 'g:' .. (call('HGET', key, 'group') or ''), id)
  end
end

local function one(id)
  local key = KEYS[15] .. id
  local t = ask('HMGET', key, 'msg', 'stint', 'state', 'unique_key')
  local f, state = t[2], t[3]
  if not t[1] then return 0 end
  if state == 'completed' or state == 'archived' then return 3 end
  if not f or #f < 64 then f = foreign(now) end
  local flags = byte(f, 2)
  if state == 'active' then
    if not has(flags, CANCEL) then call('HSET', key, 'stint', char(1, flags + CANCEL) .. sub(f, 3)) end
    call('SADD', KEYS[13], id)
    return 2
  end
  take_out(id, key, state)
  call('ZADD', KEYS[7], now_s, id)
  call('ZADD', KEYS[14], sec(now), id)
  call('HSET', key, 'state', 'archived', 'stint', sub(f, 1, 5) .. char(KIND_CANCELLED) .. sub(f, 7, 16) .. u8(now) .. sub(f, 25))
  call('HDEL', key, 'pending_since')
  if has(flags, ACTIVE) then unlock(t[4], id) end
  trim(now)
  return 1
end

go_though_full(KEYS[3])
for i = 2, #ARGV do out[i] = one(ARGV[i]) end
return out
