-- What the scripts share: times, the packed field, the message's bytes, and how an attempt ends.
--
-- Every script of a queue has these keys, in this order (redis_int.h has it too):
--   1 pending  2 active  3 lease  4 scheduled  5 retry  6 completed  7 archived  8 paused  9 processed  10 failed
--   11 fence  12 rules  13 cancel  14 cancelled  15 "asynq:{Q}:t:", what a task's key begins with
-- Times are microseconds since 1970; the argument '0' means the server's own clock.
--
-- A script that fails keeps what it has written so far: a job could be out of one list and not yet in another.  So what may have any kind or
-- value, since anybody may write it, is read by `ask`, which answers an empty table where the kind is wrong; and a script looks at the lists
-- and sets it will write to before it takes anything out of one.
local call, sub, byte, char, floor, fmt = redis.call, string.sub, string.byte, string.char, math.floor, string.format
local ask = redis.pcall
local pack, unpack_s = struct.pack, struct.unpack
local ZERO8 = '\0\0\0\0\0\0\0\0'
local CANCEL, ACTIVE, WINDOW, FOREIGN, META = 4, 8, 16, 32, 64
local ARCHIVE_DAYS, ARCHIVE_MAX, RUNS_MAX = 90, 10000, 262144

-- Moves and renewals must go on where maxmemory is used up, or nothing would ever make room and running jobs would lose their leases.
-- The server refuses a script's first write, if that could need memory: so this one comes first, which cannot.  It changes nothing: no
-- task has that id ('' may be one, if somebody pushed it by hand).
local function go_though_full(lease) call('ZREM', lease, '\0stint\0') end
local function go_though_full_hash(key) call('HDEL', key, '') end

-- Fails where one of the queue's lists and sets is of another kind: before anything is written.
local function all_sound()
  for i = 1, 2 do call('LLEN', KEYS[i]) end
  for i = 3, 7 do call('ZCARD', KEYS[i]) end
  call('SCARD', KEYS[13])
  call('ZCARD', KEYS[14])
end

local function clock(arg)
  if arg ~= '0' then return tonumber(arg) end
  local t = call('TIME')
  return t[1] * 1000000 + t[2]
end
-- When a lease of so long ends.  By the server's clock never with a whole second, as a stock server's always does.
local function lease_end(arg, now, us)
  local t = now + us
  return arg == '0' and t % 1000000 == 0 and t + 1 or t
end
local function int(v) return fmt('%.0f', v) end
local function sec(us) return fmt('%.6f', us / 1000000) end
local function ns(us) return fmt('%.0f000', us) end
local function u8(v) return pack('>I8', v) end
local function at8(f, i) return (unpack_s('>I8', f, i)) end
local function has(flags, bit) return flags % (bit * 2) >= bit end

-- Of a message, to see that nobody has changed it.
local function digest(m)
  if #m > 65536 then m = #m .. sub(m, -65536) end
  return sub(redis.sha1hex(m), 1, 16)
end

-- The fixed part for a task that some other program has enqueued.
local function foreign(since)
  if not (since >= 0 and since < 2 ^ 53) then since = 0 end
  return '\1\32\0\0\0\0\0\0' .. ZERO8 .. ZERO8 .. u8(since) .. u8(since) .. ZERO8 .. '\255\255\255\255\255\255\255\255' .. ZERO8
end

---- the message: protobuf fields in the bytes that are there, unknown ones too ----

local function varint(v)
  local out = ''
  while v >= 128 do
    out = out .. char(v % 128 + 128)
    v = floor(v / 128)
  end
  return out .. char(v)
end

local function varint_at(m, i)
  local v, scale = 0, 1
  for _ = 1, 10 do
    local b = byte(m, i)
    i = i + 1
    if b < 128 then return v + b * scale, i end
    v, scale = v + (b - 128) * scale, scale * 128
  end
  error('varint')
end

-- Where the field that begins at i ends, and its number.
local function field_at(m, i)
  local tag, at = varint_at(m, i)
  local wire = tag % 8
  local len
  if wire == 0 then
    len, at = varint_at(m, at)
  elseif wire == 2 then
    len, at = varint_at(m, at)
    at = at + len
  elseif wire == 1 then at = at + 8
  elseif wire == 5 then at = at + 4
  else error('wire type') end
  if at > #m + 1 then error('cut') end
  return (tag - wire) / 8, at, len
end

-- The number in a field; the last one counts.
local function msg_number(m, field)
  local i, found = 1, 0
  while i <= #m do
    local number, after, v = field_at(m, i)
    if number == field then found = v end
    i = after
  end
  return found
end

local function msg_int(m, field)
  local ok, v = pcall(msg_number, m, field)
  return ok and v or 0
end

-- The message with these fields (number -> bytes, '' = gone) in the place of its own, in ascending order.
local function msg_put(m, changes, order)
  local out, n, i, next = {}, 0, 1, 1
  while i <= #m do
    local number, after = field_at(m, i)
    while order[next] and order[next] < number do
      n = n + 1
      out[n] = changes[order[next]]
      next = next + 1
    end
    if not changes[number] then
      n = n + 1
      out[n] = sub(m, i, after - 1)
    end
    i = after
  end
  for k = next, #order do
    n = n + 1
    out[n] = changes[order[k]]
  end
  return table.concat(out)
end

local function msg_set(m, changes)
  local order = {}
  for number in pairs(changes) do order[#order + 1] = number end
  table.sort(order)
  local ok, out = pcall(msg_put, m, changes, order)
  return ok and out or m -- not a message: it stays as it is
end

-- The message without its payload, which comes second.
local function msg_slim(m)
  local ok, out = pcall(function()
    if byte(m) ~= 10 then return m end
    local _, at = field_at(m, 1)
    if byte(m, at) ~= 18 then return m end
    local _, after = field_at(m, at)
    return sub(m, 1, at - 1) .. sub(m, after)
  end)
  return ok and out or m
end

local function pb_int(field, v) return v == 0 and '' or varint(field * 8) .. varint(v) end
local function pb_text(field, s) return s == '' and '' or varint(field * 8 + 2) .. varint(#s) .. s end

---- counters ----

local function day(us)
  local z = floor(us / 86400000000) + 719468
  local era = floor(z / 146097)
  local doe = z - era * 146097
  local yoe = floor((doe - floor(doe / 1460) + floor(doe / 36524) - floor(doe / 146096)) / 365)
  local doy = doe - (365 * yoe + floor(yoe / 4) - floor(yoe / 100))
  local mp = floor((5 * doy + 2) / 153)
  local m = mp < 10 and mp + 3 or mp - 9
  return fmt('%04d-%02d-%02d', yoe + era * 400 + (m <= 2 and 1 or 0), m, doy - floor((153 * mp + 2) / 5) + 1)
end

local function count(total, n, now)
  if n == 0 then return end
  local today = total .. ':' .. day(now)
  if ask('INCRBY', today, n) == n then call('EXPIREAT', today, floor(now / 1000000) + 90 * 86400) end
  if type(ask('INCRBY', total, n)) == 'table' then call('SET', total, n) end -- at its end: anew
end

---- moves ----

-- What is over after 90 days, or beyond 10,000; how many went.  Of those archived in one second the first ids go first, which may be the one
-- just archived: nothing is written to it afterwards, or its hash would be in no list.
local function trim(now)
  local archived, gone = KEYS[7], 0
  local before = floor(now / 1000000) - ARCHIVE_DAYS * 86400
  local old = call('ZRANGEBYSCORE', archived, '-inf', before, 'LIMIT', 0, 1000)
  for _, id in ipairs(old) do call('DEL', KEYS[15] .. id) end
  if #old > 0 then call('ZREM', archived, unpack(old)); call('ZREM', KEYS[14], unpack(old)) end
  gone = #old
  old = call('ZRANGEBYSCORE', KEYS[14], '-inf', before, 'LIMIT', 0, 1000) -- stock tools remove archived jobs without knowing of it
  if #old > 0 then call('ZREM', KEYS[14], unpack(old)) end
  local extra = call('ZCARD', archived) - ARCHIVE_MAX + 1
  if extra > 0 then
    old = call('ZRANGE', archived, 0, math.min(extra, 1000) - 1)
    for _, id in ipairs(old) do call('DEL', KEYS[15] .. id) end
    call('ZREM', archived, unpack(old))
    call('ZREM', KEYS[14], unpack(old))
    gone = gone + #old
  end
  return gone
end

local function unlock(lock, id)
  if lock and lock ~= '' and ask('GET', lock) == id then call('DEL', lock) end
end

-- Is it in the archive because it was cancelled?  Not if a stock tool has revived it since and it was archived anew, at another time.
local function is_cancelled(archived, cancelled)
  return archived and cancelled and floor(tonumber(cancelled)) == floor(tonumber(archived))
end

-- Due ids of one set go to pending, or to their group (if that is of another kind they stay); ids whose task is gone are dropped.  How
-- many of those.
local function forward(set, pending, prefix, now, limit)
  local ids = call('ZRANGEBYSCORE', set, '-inf', sec(now), 'LIMIT', 0, limit)
  local vanished, moved = 0, {}
  if #ids > 0 then call('LLEN', pending) end
  for _, id in ipairs(ids) do
    local t = ask('HMGET', prefix .. id, 'group', 'state')
    local stays = false
    if not t[2] then
      vanished = vanished + 1
    elseif t[1] and t[1] ~= '' then
      stays = type(ask('ZADD', sub(prefix, 1, -3) .. 'g:' .. t[1], floor(now / 1000000), id)) == 'table'
      if not stays then call('HSET', prefix .. id, 'state', 'aggregating') end
    else
      call('LPUSH', pending, id)
      call('HSET', prefix .. id, 'state', 'pending', 'pending_since', ns(now))
    end
    if not stays then moved[#moved + 1] = id end
  end
  if #moved > 0 then call('ZREM', set, unpack(moved)) end
  return vanished
end

-- Is this the hold under which the task is held at this moment?
local function holds(f, state, score, msg)
  return f and #f >= 121 and state == 'active' and score and sub(f, 66, 73) ~= sub(f, 9, 16)
    and tonumber(score) == at8(f, 74) / 1000000 and (not msg or sub(f, 90, 105) == digest(msg))
end

-- One more ended attempt.
local function run_add(key, outcome, kind, n, fence8, started, now, worker, told)
  local rec = char(outcome, kind) .. pack('>I4', n) .. fence8 .. u8(started) .. u8(now) .. char(#worker) .. worker .. told
  local runs = (call('HGET', key, 'stint_runs') or '') .. pack('>I4', #rec) .. rec
  while #runs > RUNS_MAX and #runs > #rec + 4 do runs = sub(runs, 5 + unpack_s('>I4', runs)) end
  call('HSET', key, 'stint_runs', runs)
end

-- The packed field after an attempt.  e: outcome, state, kind, flags, skips, due, first, run (8 bytes each), fin
local function settled(f, e)
  return char(1, e.flags, e.skips, e.outcome, e.state, e.kind) .. sub(f, 7, 8) .. sub(f, 66, 73) .. e.fin .. sub(f, 25, 32) .. e.due ..
    e.first .. sub(f, 49, 81) .. e.run .. sub(f, 90)
end

local SUCCEEDED, RETRY, FAILED, CANCELLED, RELEASED, EXPIRED = 0, 1, 2, 3, 4, 100
local KIND_CANCELLED = 11

-- Ends an attempt other than by success: moves the task out of active, whose hold was checked by the caller.
-- o: outcome, kind, delay, message (or nil), told (or nil: no attempt is written), said (what last_outcome says), as (the
-- outcome in the attempt's record), nohandler.  Returns the new state; counts in c.
local function settle(now, id, msg, f, lock, o, c)
  local key, flags, outcome, kind = KEYS[15] .. id, byte(f, 2), o.outcome, o.kind
  local cancel = has(flags, CANCEL)
  if cancel and (outcome == RETRY or outcome == RELEASED) then outcome, kind = CANCELLED, KIND_CANCELLED end
  if outcome == CANCELLED and kind == 0 then kind = KIND_CANCELLED end
  local retried = msg_int(msg, 6)
  local e = {outcome = o.said + 1, kind = kind == 0 and byte(f, 6) or kind, skips = o.skips or byte(f, 3), flags = flags,
             due = sub(f, 33, 40), first = sub(f, 41, 48), run = sub(f, 82, 89), fin = ZERO8}
  if e.run == ZERO8 and o.started >= 0 then e.run = u8(o.started) end
  if e.run ~= ZERO8 then
    if not o.skips then e.skips = 0 end
    if e.first == ZERO8 then e.first = e.run end
  end
  if o.told and (outcome ~= RELEASED or e.run ~= ZERO8) then
    run_add(key, o.as or outcome, kind, retried + 1, sub(f, 66, 73), at8(e.run, 1), now, sub(f, 122), o.told)
  end
  if cancel then
    e.flags = flags - CANCEL
    call('SREM', KEYS[13], id)
  end
  local changes = {}
  if o.message then changes[7] = pb_text(7, o.message) end
  local state
  if outcome == RETRY or outcome == RELEASED then
    local due = now + o.delay
    e.due, e.state = u8(due), 1
    if outcome == RETRY then
      changes[6], changes[11] = pb_int(6, retried + 1), pb_int(11, floor(now / 1000000))
      c.processed, c.failed = c.processed + 1, c.failed + 1
    end
    if outcome == RETRY or o.nohandler or (o.delay > 0 and retried > 0) then
      state = 'retry'
      call('ZADD', KEYS[5], sec(due), id)
    elseif o.delay > 0 then
      state = 'scheduled'
      call('ZADD', KEYS[4], sec(due), id)
    else
      state = 'pending'
      call('RPUSH', KEYS[1], id)
      call('HSET', key, 'pending_since', ns(now))
    end
  else
    state, e.state, e.fin = 'archived', outcome == FAILED and 5 or 6, u8(now)
    c.processed = c.processed + 1
    if outcome == FAILED then
      changes[11] = pb_int(11, floor(now / 1000000))
      c.failed = c.failed + 1
      call('ZREM', KEYS[14], id) -- it was cancelled once, and revived by a stock tool
    else
      call('ZADD', KEYS[14], sec(now), id)
    end
    call('ZADD', KEYS[7], floor(now / 1000000), id)
    if has(flags, ACTIVE) then unlock(lock, id) end
  end
  call('HSET', key, 'msg', next(changes) and msg_set(msg, changes) or msg, 'state', state, 'stint', settled(f, e))
  if state == 'archived' then c.trimmed = c.trimmed + trim(now) end -- last: it may go itself
  return e.state
end

