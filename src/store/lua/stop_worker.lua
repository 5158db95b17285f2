-- The leases of a worker whose process is gone end now.  KEYS: lease, then the hashes of jobs that are active.  ARGV: now, worker, then ids
-- Answers how many it held.
local now, n = clock(ARGV[1]), 0
go_though_full(KEYS[1])
for i = 2, #KEYS do
    local id = ARGV[i + 1]
    local t = ask('HMGET', KEYS[i], 'state', 'stint')
    local f = t[2]
    if f and sub(f, 122) == ARGV[2] and holds(f, t[1], call('ZSCORE', KEYS[1], id)) and at8(f, 74) > now then
        call('HSET', KEYS[i], 'stint', sub(f, 1, 73) .. u8(now) .. sub(f, 82))
        call('ZADD', KEYS[1], sec(now), id)
        n = n + 1
    end
end
return n
