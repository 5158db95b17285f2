-- How many jobs of a queue are where.  KEYS: paused, pending, active, scheduled, retry, archived, completed, cancelled.  ARGV: now (s; 0 = the
-- server's)
-- Answers {paused, pending, active, scheduled in all, of these due, to be tried again in all, of these due, archived, of these cancelled,
-- completed, when the first scheduled and the first to be tried again are or were due, the ids at the list's end}
local now = ARGV[1]
if now == '0' then
    local t = redis.call('TIME')
    now = string.format('%d.%06d', t[1], t[2])
end
local function first(key)
    return redis.call('ZRANGE', key, 0, 0, 'WITHSCORES')[2] or false
end
local cancelled = redis.call('ZCARD', KEYS[8])
if cancelled > 0 then -- stock tools remove and revive jobs without knowing of it
    local both = redis.call('ZINTER', 2, KEYS[6], KEYS[8], 'WEIGHTS', 1, -1, 'WITHSCORES')
    cancelled = 0
    for i = 2, #both, 2 do
        local apart = tonumber(both[i]) -- as is_cancelled: archived in the second in which it was cancelled
        cancelled = cancelled + (apart > -1 and apart <= 0 and 1 or 0)
    end
end
return {redis.call('EXISTS', KEYS[1]), redis.call('LLEN', KEYS[2]), redis.call('LLEN', KEYS[3]),
        redis.call('ZCARD', KEYS[4]), redis.call('ZCOUNT', KEYS[4], '-inf', now),
        redis.call('ZCARD', KEYS[5]), redis.call('ZCOUNT', KEYS[5], '-inf', now),
        redis.call('ZCARD', KEYS[6]), cancelled, redis.call('ZCARD', KEYS[7]), first(KEYS[4]), first(KEYS[5]),
        redis.call('LRANGE', KEYS[2], -20, -1)}
