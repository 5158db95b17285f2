-- Writes outcomes of jobs of one queue, each only if it is held under its fence.
-- ARGV: now, then per job: id, head (fence 8, outcome 1, kind 1, parts 1, delay 8, started_ago 8, signed) and what parts says:
--   1 result, 2 result_ref, 4 message, 8 what the worker told of the attempt, 16 (nothing more: there is no handler)
-- Returns now, how many were trimmed from the archive, then per job its state, 0 = lost, -1 = no such task.
local now = clock(ARGV[1])
local now_s, now8 = floor(now / 1000000), u8(now)
local T, at, out, n = KEYS[15], 2, {int(now), 0}, 2
local done_mark = '\104' .. varint(now_s)
local c = {processed = 0, failed = 0, trimmed = 0}
local unlease, completed = {}, {}

-- The very same outcome, written before.
local function repeated(id, head, f)
  if f and #f >= 64 and sub(f, 9, 16) == sub(head, 1, 8) and byte(f, 4) == byte(head, 9) + 1 then return byte(f, 5) end
  return 0
end

local function succeed(id, key, msg, f, lock, started, result, ref, told)
  local flags, first, run = byte(f, 2), sub(f, 41, 48), sub(f, 82, 89)
  local keep = flags >= FOREIGN and has(flags, FOREIGN) and msg_int(msg, 12) or 86400
  if keep >= 2 ^ 63 then keep = 0 end -- less than nothing
  local same = run ~= ZERO8 and first ~= ZERO8
  if run == ZERO8 and started >= 0 then run = u8(started) end
  if first == ZERO8 then first = run end
  if told and keep > 0 then
    run_add(key, 0, 0, msg_int(msg, 6) + 1, sub(f, 66, 73), at8(run, 1), now, sub(f, 122), told)
  end
  if has(flags, CANCEL) then
    flags = flags - CANCEL
    call('SREM', KEYS[13], id)
  end
  if lock then unlock(lock, id) end
  c.processed = c.processed + 1
  if keep <= 0 then -- as asynq: nothing is kept; who asks again is answered for a while
    call('DEL', key)
    call('SET', 'stint' .. sub(T, 6, -3) .. 'd:' .. id, sub(f, 66, 73) .. '\1\4', 'EX', 600)
    return 4
  end
  local field = char(1, flags, 0, 1, 4) .. sub(f, 6, 8) .. sub(f, 66, 73) .. now8 .. (same and sub(f, 25) or
    sub(f, 25, 40) .. first .. sub(f, 49, 81) .. run .. sub(f, 90))
  if result or ref then
    local set = {'msg', msg .. done_mark, 'state', 'completed', 'stint', field}
    if result then set[7], set[8] = 'result', result end
    if ref then set[#set + 1], set[#set + 2] = 'stint_ref', ref end
    call('HSET', key, unpack(set))
  else
    call('HSET', key, 'msg', msg .. done_mark, 'state', 'completed', 'stint', field)
  end
  completed[#completed + 1] = int(now_s + keep)
  completed[#completed + 1] = id
  return 4
end

-- The same for a job of which there is nothing to tell, which is most of them: no lock, no flag, no error, no result.  Every string
-- that Lua makes costs, so it makes few.  A time of ours has a second byte that is not 0.
local plain_head, kept_until = {}, int(now_s + 86400)
local function succeed_plain(id, key, msg, f, fence8, flags, ago8)
  local head = plain_head[flags]
  if not head then
    head = char(1, flags, 0, 1, 4, 0, 0, 0)
    plain_head[flags] = head
  end
  local rest
  if byte(f, 42) ~= 0 and byte(f, 83) ~= 0 then
    rest = sub(f, 25)
  else
    local ago = unpack_s('>i8', ago8, 20)
    local run = byte(f, 83) ~= 0 and sub(f, 82, 89) or ago >= 0 and u8(now - ago) or ZERO8
    rest = sub(f, 25, 40) .. (byte(f, 42) ~= 0 and sub(f, 41, 48) or run) .. sub(f, 49, 81) .. run .. sub(f, 90)
  end
  call('HSET', key, 'msg', msg .. done_mark, 'state', 'completed', 'stint', head .. fence8 .. now8 .. rest)
  local m = #completed
  completed[m + 1], completed[m + 2] = kept_until, id
  c.processed = c.processed + 1
  return 4
end

-- The scores of all of them at once; an id that comes twice is no longer active the second time.
local heads, ids, more, m, moves = {}, {}, {}, 0, false
while at < #ARGV do
  local head = ARGV[at + 1]
  local parts = byte(head, 11)
  m = m + 1
  moves = moves or byte(head, 9) ~= SUCCEEDED
  ids[m], heads[m] = ARGV[at], head
  at = at + 2
  if parts > 0 then
    local item = {}
    for bit = 1, 4 do
      if has(parts, 2 ^ (bit - 1)) then item[bit], at = ARGV[at], at + 1 end
    end
    more[m] = item
  end
end
go_though_full(KEYS[3])
local scores = #ids > 0 and call('ZMSCORE', KEYS[3], unpack(ids)) or {}
if moves then
  all_sound()
else
  call('ZCARD', KEYS[6])
  call('SCARD', KEYS[13])
end

-- What was claimed first lies at the tail, and much of it ends together: the tail is read once and put back without those that
-- have ended, instead of a search for each.
local tail, in_tail, ended = {}, {}, {}
if #ids >= 8 then
  tail = call('LRANGE', KEYS[2], -#ids - 64, -1)
  for i = 1, #tail do in_tail[tail[i]] = true end
end
local function take(id)
  if not in_tail[id] then return call('LREM', KEYS[2], -1, id) > 0 end
  ended[id] = true
  return true
end
local function tail_write()
  if not next(ended) then return end
  local rest = {}
  for i = 1, #tail do
    if not ended[tail[i]] then rest[#rest + 1] = tail[i] end
  end
  call('LTRIM', KEYS[2], 0, -#tail - 1)
  if #rest > 0 then call('RPUSH', KEYS[2], unpack(rest)) end
end

-- As lib.lua's holds.  In the list of active ones, under our own lease: that it is `active` goes without saying.
local function held(f, fence8, score, msg)
  return f and #f >= 121 and score and sub(f, 66, 73) == fence8 and sub(f, 9, 16) ~= fence8 and tonumber(score) == at8(f, 74) / 1000000
    and sub(f, 90, 105) == digest(msg)
end

local function finish_one(id, key, msg, f, head, item)
  local outcome, result, ref = byte(head, 9), item[1], item[2]
  local delay, ago = unpack_s('>i8i8', head, 12)
  local started = ago >= 0 and now - ago or -1
  local lock = byte(f, 2) >= ACTIVE and call('HGET', key, 'unique_key')
  if outcome == SUCCEEDED then return succeed(id, key, msg, f, lock, started, result, ref, item[4]) end
  if result then call('HSET', key, 'result', result) end
  if ref then call('HSET', key, 'stint_ref', ref) end
  return settle(now, id, msg, f, lock, {outcome = outcome, said = outcome, kind = byte(head, 10), delay = delay, started = started,
    message = item[3], told = item[4], nohandler = has(byte(head, 11), 16)}, c)
end

for i = 1, m do
  local id, head, item = ids[i], heads[i], more[i]
  local fence8, outcome = sub(head, 1, 8), byte(head, 9)
  local key = T .. id
  local t = ask('HMGET', key, 'msg', 'stint')
  local msg, f = t[1], t[2]
  local verdict
  if not msg then
    local mark = ask('GET', 'stint' .. sub(T, 6, -3) .. 'd:' .. id)
    verdict = -1
    if mark then verdict = mark == fence8 .. char(outcome + 1) .. '\4' and 4 or 0 end
  elseif held(f, fence8, scores[i], msg) and take(id) then
    local flags = byte(f, 2)
    unlease[#unlease + 1] = id
    if outcome == SUCCEEDED and not item and flags < CANCEL and byte(f, 6) == 0 then
      verdict = succeed_plain(id, key, msg, f, fence8, flags, head)
    else
      verdict = finish_one(id, key, msg, f, head, item or {})
    end
  else
    verdict = repeated(id, head, f)
  end
  n = n + 1
  out[n] = verdict
end
if #unlease > 0 then call('ZREM', KEYS[3], unpack(unlease)) end
tail_write()
if #completed > 0 then call('ZADD', KEYS[6], unpack(completed)) end
count(KEYS[9], c.processed, now)
count(KEYS[10], c.failed, now)
out[2] = c.trimmed
return out
