-- All there is to know of some jobs of a queue, as of one moment.
-- KEYS: lease, scheduled, retry, archived, completed, cancelled, rules, then the jobs' hashes
-- ARGV: 0 = without payload and result, 1 = with both, 2 = with ended attempts too; then the ids
-- Answers now (us), then for each job: nil, or {state, msg, pending_since, stint, meta, key, ref, progress, unique_key, result, runs, score in
-- its set, score among the cancelled, the rules it was claimed with}
local SETS = {active = 1, scheduled = 2, retry = 3, archived = 4, completed = 5}

-- false where the set is of another kind, too
local function score(key, id)
    local v = redis.pcall('ZSCORE', key, id)
    return type(v) == 'string' and v
end

local t = redis.call('TIME')
local out = {string.format('%.0f', t[1] * 1000000 + t[2])}
for i = 8, #KEYS do
    local id = ARGV[i - 6]
    local f = redis.pcall('HMGET', KEYS[i], 'state', 'msg', 'pending_since', 'stint', 'stint_meta', 'stint_key', 'stint_ref',
                         'stint_progress', 'unique_key')
    local r = false
    if f[2] or f[1] then
        r = f
        r[10] = ARGV[1] ~= '0' and redis.call('HGET', KEYS[i], 'result')
        r[11] = ARGV[1] == '2' and redis.call('HGET', KEYS[i], 'stint_runs')
        r[12] = f[1] and SETS[f[1]] and score(KEYS[SETS[f[1]]], id) or false
        r[13] = f[1] == 'archived' and score(KEYS[6], id)
        if not is_cancelled(r[12], r[13]) then r[13] = false end
        r[14] = false
        if ARGV[1] == '0' and f[2] and #f[2] > 4096 then
            r[2] = msg_slim(f[2])
        end
        local digest = f[4] and f[4]:sub(106, 121) or ''
        if #digest == 16 and digest ~= '0000000000000000' then
            r[14] = redis.call('HGET', KEYS[7], digest)
        end
    end
    out[#out + 1] = r
end
return out
