-- A worker's sign of life.  KEYS: workers, layout.
-- ARGV: id, now (us; 0 = the server's), how long a silent one keeps its id (us), which process, the rest of its row, layout version
-- Answers {-1} if another process has the id, else {1 if its row was there, 1 if the store was one of ours before this, now}.
go_though_full_hash(KEYS[1])
local now = tonumber(ARGV[2])
if now == 0 then
    local t = redis.call('TIME')
    now = t[1] * 1000000 + t[2]
end
local row = redis.call('HGET', KEYS[1], ARGV[1])
if row then
    local beat, who = string.match(row, '^(%d+)\n([^\n]*)\n')
    if beat and who ~= ARGV[4] and now - tonumber(beat) <= tonumber(ARGV[3]) then
        return {-1, 1, string.format('%.0f', now)}
    end
end
local fresh = redis.call('SETNX', KEYS[2], ARGV[6])
redis.call('HSET', KEYS[1], ARGV[1], string.format('%.0f', now) .. '\n' .. ARGV[4] .. '\n' .. ARGV[5])
return {row and 1 or 0, 1 - fresh, string.format('%.0f', now)}
