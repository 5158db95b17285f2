-- Adds jobs to one queue.
-- ARGV: now, mode (0 = if an id is there already write nothing; 1 = leave those that are there alone; 2 = only look), then per job 8:
--   id, msg, the packed field without created and due (24 + 24 bytes), due ("US" or "+US"), lock or '', its time in us (0 =
--   while the job lives), meta or '', key or ''
-- Returns now, then per job 0 = added, {1, msg} = there already, {2, id} = this one holds the key.  Mode 0 with an id that is there,
-- and mode 2: those that are not are {0}.
local now = clock(ARGV[1])
call('LLEN', KEYS[1])
call('ZCARD', KEYS[4])
local LOCK_S = 30 * 86400
local T, out = KEYS[15], {int(now)}

local function there()
  local any = false
  for i = 3, #ARGV, 8 do
    local msg = call('EXISTS', T .. ARGV[i]) == 1 and (call('HGET', T .. ARGV[i], 'msg') or '')
    any = any or msg
    out[#out + 1] = msg and {1, msg} or {0}
  end
  return any
end

-- Who holds the lock; a window that has passed by our clock is free, whatever its TTL says.
local function holder(lock, id)
  local who = ask('GET', lock)
  if not who or who == id or type(who) == 'table' then return nil end
  local t = ask('HMGET', T .. who, 'stint', 'state')
  if t[1] and #t[1] >= 64 then
    local flags = byte(t[1], 2)
    if has(flags, WINDOW) and at8(t[1], 57) <= now then return nil end
    if has(flags, ACTIVE) and (t[2] == 'archived' or t[2] == 'completed') then return nil end
  end
  return who
end

local looked = ARGV[2] ~= '1'
if looked and (there() or ARGV[2] == '2') then return out end
out = {int(now)}
local pending, new, bad = {}, {}, nil
for i = 3, #ARGV, 8 do
  local id, msg, field, due, lock = ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3], ARGV[i + 4]
  local key = T .. id
  local old = (not looked or new[id]) and ask('HGET', key, 'msg')
  if type(old) == 'table' then -- no task: those before it are added all the same
    bad = old
    break
  end
  local who = not old and lock ~= '' and holder(lock, id)
  if old then
    out[#out + 1] = {1, old}
  elseif who then
    out[#out + 1] = {2, who}
  else
    due = byte(due) == 43 and now + tonumber(sub(due, 2)) or tonumber(due)
    local set = {'msg', msg, 'state', due > now and 'scheduled' or 'pending'}
    local untl = sub(field, 41, 48)
    if lock ~= '' then
      local us = tonumber(ARGV[i + 5])
      local s = us > 0 and math.max(1, math.ceil(us / 1000000)) or LOCK_S + math.max(0, math.ceil((due - now) / 1000000))
      call('SET', lock, id, 'EX', int(s))
      if us > 0 then untl = u8(now + us) end
      set[#set + 1] = us > 0 and 'stint_lock' or 'unique_key'
      set[#set + 1] = lock
      set[#set + 1] = 'stint_key'
      set[#set + 1] = ARGV[i + 7]
    end
    if ARGV[i + 6] ~= '' then
      set[#set + 1] = 'stint_meta'
      set[#set + 1] = ARGV[i + 6]
    end
    set[#set + 1] = 'stint'
    set[#set + 1] = sub(field, 1, 24) .. u8(now) .. u8(due) .. sub(field, 25, 40) .. untl
    if due > now then
      call('ZADD', KEYS[4], sec(due), id)
    else
      set[#set + 1] = 'pending_since'
      set[#set + 1] = ns(now)
      pending[#pending + 1] = id
    end
    call('HSET', key, unpack(set))
    new[id] = true
    out[#out + 1] = 0
  end
end
if #pending > 0 then call('LPUSH', KEYS[1], unpack(pending)) end
return bad or out
