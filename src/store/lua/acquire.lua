-- Takes one job by its id: due, or held under a lease that has ended.
-- KEYS: the 15 of lib.lua and the parent's paused (its own again if it has none)
-- ARGV: now, id, digest of msg as it was read, lease in us, worker, rules, max_attempts, what is told of an attempt that was lost, 1 = its parent is paused
-- Returns now and why not (as enum st_refusal; -1 = msg has changed, -2 = the rules are not there), or now, 0, id, msg, packed field, meta.
local now, id, worker, rules, max = clock(ARGV[1]), ARGV[2], ARGV[5], ARGV[6], tonumber(ARGV[7])
local key, own_clock = KEYS[15] .. id, ARGV[1] == '0'
local UNKNOWN, NOT_DUE, PAUSED, EXHAUSTED, HELD, ENDED = 1, 2, 3, 4, 5, 6
local t = call('HMGET', key, 'msg', 'stint', 'state', 'stint_meta', 'pending_since')
local msg, f, state = t[1], t[2], t[3]
local function no(why) return {int(now), why} end

if not msg then return no(UNKNOWN) end
if state == 'completed' or state == 'archived' then return no(ENDED) end
if digest(msg) ~= ARGV[3] then return no(-1) end
if rules ~= '0000000000000000' and call('HEXISTS', KEYS[12], rules) == 0 then return no(-2) end
if not f or #f < 64 or byte(f) ~= 1 then f = foreign(floor((tonumber(t[5] or '') or now * 1000) / 1000)) end
local retried = msg_int(msg, 6)
local score = call('ZSCORE', KEYS[3], id)
local ours = holds(f, state, score)
local run = state == 'active' and not (ours and byte(f, 65) == 2) -- an attempt that was begun and is charged

if state == 'active' then
  if not score or tonumber(score) > now / 1000000 - (ours and 0 or 30) or has(byte(f, 2), CANCEL) then return no(HELD) end
elseif state == 'scheduled' or state == 'retry' then
  local due = call('ZSCORE', KEYS[state == 'retry' and 5 or 4], id)
  if not due or tonumber(due) > now / 1000000 then return no(NOT_DUE) end
elseif state ~= 'pending' then
  return no(NOT_DUE) -- it waits in a group
end
if ARGV[9] == '1' or call('EXISTS', KEYS[8], KEYS[16]) > 0 then return no(PAUSED) end
if max > 0 and retried + (run and 1 or 0) >= max then return no(EXHAUSTED) end

all_sound()
local fence = (tonumber(call('GET', KEYS[11]) or '0') or 0) + 1
if own_clock and fence < now then fence = now end
if state == 'active' then
  call('LREM', KEYS[2], 0, id)
  if run then
    local worker_was = ours and sub(f, 122) or ''
    if ours then run_add(key, EXPIRED, 8, retried + 1, sub(f, 66, 73), at8(f, 82), now, worker_was, ARGV[8]) end
    msg = msg_set(msg, {[6] = pb_int(6, retried + 1), [7] = pb_text(7, 'lease expired'), [11] = pb_int(11, floor(now / 1000000))})
    count(KEYS[9], 1, now)
    count(KEYS[10], 1, now)
    f = sub(f, 1, 3) .. char(EXPIRED, 1, 8) .. sub(f, 7, 8) .. (ours and sub(f, 66, 73) or sub(f, 9, 16)) .. sub(f, 17)
  end
elseif state == 'pending' then
  call('LREM', KEYS[1], -1, id)
else
  call('ZREM', KEYS[state == 'retry' and 5 or 4], id)
end
call('SET', KEYS[11], int(fence))
local lease, first = lease_end(ARGV[1], now, tonumber(ARGV[4])), sub(f, 41, 48)
f = sub(f, 1, 2) .. '\0' .. sub(f, 4, 40) .. (first == ZERO8 and u8(now) or first) .. sub(f, 49, 64) .. '\3' .. u8(fence) .. u8(lease) ..
  u8(now) .. digest(msg) .. rules .. worker
call('HSET', key, 'msg', msg, 'state', 'active', 'stint', f)
call('HDEL', key, 'pending_since')
call('LPUSH', KEYS[2], id)
call('ZADD', KEYS[3], sec(lease), id)
return {int(now), 0, id, msg, f, t[4]}
