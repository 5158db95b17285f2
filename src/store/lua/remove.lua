-- Removes ended jobs whose time is over.  KEYS: the set they are in, cancelled, then their hashes.
-- ARGV: the state they must be in, then id and score for each: one that was moved meanwhile stays
-- Answers for each that went {ref, runs}: the files that go with it are in there
local out = {}
for i = 3, #KEYS do
    local id, score = ARGV[2 * i - 4], ARGV[2 * i - 3]
    local at = redis.call('ZSCORE', KEYS[1], id)
    local f = redis.pcall('HMGET', KEYS[i], 'state', 'stint_ref', 'stint_runs')
    if at and tonumber(at) == tonumber(score) and (not f[1] or f[1] == ARGV[1]) then
        redis.call('DEL', KEYS[i])
        redis.call('ZREM', KEYS[1], id)
        redis.call('ZREM', KEYS[2], id)
        out[#out + 1] = {f[2], f[3]}
    end
end
return out
