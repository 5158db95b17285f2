-- Takes a worker's row away.  KEYS: workers, leader.  ARGV: id, the asking leader's epoch (0 = nobody's), its last beat (us; 0 = any),
-- 1 = its process is gone, so it leads no more.
-- Answers -1 for a stale epoch, -2 if it has beaten since, else how many rows went.
go_though_full_hash(KEYS[1])
if ARGV[2] ~= '0' and redis.call('HGET', KEYS[2], 'epoch') ~= ARGV[2] then
    return -1
end
if ARGV[3] ~= '0' then
    local row = redis.call('HGET', KEYS[1], ARGV[1])
    if not row or string.match(row, '^(%d+)\n') ~= ARGV[3] then
        return -2
    end
end
if ARGV[4] == '1' and redis.call('HGET', KEYS[2], 'worker') == ARGV[1] then
    redis.call('HSET', KEYS[2], 'until', 0)
end
return redis.call('HDEL', KEYS[1], ARGV[1])
