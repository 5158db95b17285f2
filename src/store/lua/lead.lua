-- Who leads.  KEYS: leader.  ARGV: now (us; 0 = the server's), who asks, for how long (us), 1 = gives it up.
-- Answers {1 if the asker leads, epoch, until, holder}.
go_though_full_hash(KEYS[1])
local now = tonumber(ARGV[1])
if now == 0 then
    local t = redis.call('TIME')
    now = t[1] * 1000000 + t[2]
end
local h = redis.call('HMGET', KEYS[1], 'epoch', 'worker', 'until')
local epoch, holder, till = tonumber(h[1] or 0), h[2] or '', tonumber(h[3] or 0)
local live = till > now
if ARGV[4] == '1' then
    if live and holder == ARGV[2] then
        redis.call('HSET', KEYS[1], 'until', 0)
        till = 0
    end
    return {0, epoch, string.format('%.0f', till), holder}
end
if live and holder ~= ARGV[2] then
    return {0, epoch, string.format('%.0f', till), holder}
end
if not live then
    epoch = epoch + 1
end
till = string.format('%.0f', now + tonumber(ARGV[3]))
redis.call('HSET', KEYS[1], 'epoch', epoch, 'worker', ARGV[2], 'until', till)
return {1, epoch, till, ARGV[2]}
