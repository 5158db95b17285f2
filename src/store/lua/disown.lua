-- Gives back, uncharged, what a worker holds in one queue and does not know of.
-- ARGV: now, worker, what is told of an attempt, then the ids it knows
-- Returns now, and how many.
local now, worker = clock(ARGV[1]), ARGV[2]
local known, given, c = {}, 0, {processed = 0, failed = 0, trimmed = 0}
all_sound()
for i = 4, #ARGV do known[ARGV[i]] = true end
for _, id in ipairs(call('LRANGE', KEYS[2], 0, -1)) do
  if not known[id] then
    local key = KEYS[15] .. id
    local t = ask('HMGET', key, 'msg', 'stint', 'state', 'unique_key')
    local f = t[2]
    if t[1] and f and sub(f, 122) == worker and holds(f, t[3], call('ZSCORE', KEYS[3], id), t[1]) then
      call('LREM', KEYS[2], 0, id)
      call('ZREM', KEYS[3], id)
      settle(now, id, t[1], f, t[4], {outcome = RELEASED, said = RELEASED, kind = 0, delay = 0, started = -1, told = ARGV[3]}, c)
      given = given + 1
    end
  end
end
count(KEYS[9], c.processed, now)
return {int(now), given}
