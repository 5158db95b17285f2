-- Takes held jobs of one queue from workers that let their lease end.
-- ARGV: now, then per job 7: id, lease as it was read, digest of msg as it was read, outcome, delay, message, what is told of the attempt
-- Returns now, how many were trimmed, then per job its new state, 0 = it has changed since.
local now = clock(ARGV[1])
local out, c = {int(now), 0}, {processed = 0, failed = 0, trimmed = 0}

-- A stock server's: as asynq's own recoverer does it.
local function recover(id, key, msg, f, lock, outcome, delay, message)
  local now_s = floor(now / 1000000)
  local changes = {[7] = pb_text(7, message), [11] = pb_int(11, now_s)}
  c.processed, c.failed = c.processed + 1, c.failed + 1
  if outcome == RETRY then
    changes[6] = pb_int(6, msg_int(msg, 6) + 1)
    call('ZADD', KEYS[5], sec(now + delay), id)
    call('HSET', key, 'msg', msg_set(msg, changes), 'state', 'retry')
    return 1
  end
  call('ZADD', KEYS[7], now_s, id)
  call('ZREM', KEYS[14], id)
  call('HSET', key, 'msg', msg_set(msg, changes), 'state', 'archived')
  if f and #f >= 64 and has(byte(f, 2), ACTIVE) then unlock(lock, id) end
  c.trimmed = c.trimmed + trim(now) -- last: it may go itself
  return 5
end

all_sound()
for i = 2, #ARGV, 7 do
  local id, outcome, delay = ARGV[i], tonumber(ARGV[i + 3]), tonumber(ARGV[i + 4])
  local key = KEYS[15] .. id
  local t = ask('HMGET', key, 'msg', 'stint', 'state', 'unique_key')
  local score, state = call('ZSCORE', KEYS[3], id), 0
  if t[1] and score == ARGV[i + 1] and digest(t[1]) == ARGV[i + 2] and call('LREM', KEYS[2], -1, id) > 0 then
    call('ZREM', KEYS[3], id)
    if holds(t[2], t[3], score) then
      local lost = byte(t[2], 65) == 2
      local skips = lost and math.min(byte(t[2], 3) + 1, 255) or 0
      local charged = outcome ~= RELEASED
      state = settle(now, id, t[1], t[2], t[4], {outcome = outcome, said = EXPIRED - 1, as = EXPIRED, kind = charged and 8 or 0, delay = delay,
        started = -1, skips = skips, message = charged and ARGV[i + 5] or nil, told = charged and ARGV[i + 6] or nil}, c)
    else
      state = recover(id, key, t[1], t[2], t[4], outcome, delay, ARGV[i + 5])
    end
  end
  out[#out + 1] = state
end
count(KEYS[9], c.processed, now)
count(KEYS[10], c.failed, now)
out[2] = c.trimmed
return out
