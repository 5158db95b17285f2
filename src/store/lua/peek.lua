-- What decides about a job, without its payload.  KEYS: lease, cancelled, archived, then the jobs' hashes.  ARGV: 1 = their types too, then the ids
-- Answers for each {state, stint, pending_since, score of its lease, score among the cancelled, key, the message's first bytes ('' = too
-- long to look at)}
local out = {}
for i = 4, #KEYS do
    local id = ARGV[i - 2]
    local f = redis.pcall('HMGET', KEYS[i], 'state', 'stint', 'pending_since', 'stint_key') -- empty where it is no task
    local head = false
    if ARGV[1] == '1' and f[1] then
        head = redis.call('HSTRLEN', KEYS[i], 'msg') <= 65536 and redis.call('HGET', KEYS[i], 'msg') or ''
        head = head:sub(1, 160)
    end
    local cancelled = f[1] == 'archived' and redis.call('ZSCORE', KEYS[2], id)
    if not (cancelled and is_cancelled(redis.call('ZSCORE', KEYS[3], id), cancelled)) then
        cancelled = false
    end
    out[#out + 1] = {f[1], f[2], f[3], f[1] == 'active' and redis.call('ZSCORE', KEYS[1], id), cancelled, f[4], head}
end
return out
