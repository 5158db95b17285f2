-- Takes up to n jobs, queue by queue.
-- KEYS: per queue the 15 of lib.lua and the parent's paused (its own again if it has none).
-- ARGV: now, n, how many of them run at once, lease in us, worker, rules
-- Returns now, the number of the queue that lacks the rules (then nothing was taken from it), or less than 0: of one whose keys are of another
-- kind (if it is the only one: the error), or 0; how many ids had no task: 0, or pairs of a queue's number and how many,
-- then per job: number of the queue, id, msg, packed field, meta.
local now, n, run = clock(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local lease, worker, rules = lease_end(ARGV[1], now, tonumber(ARGV[4])), ARGV[5], ARGV[6]
local own_clock = ARGV[1] == '0'
local lease8, now8, lease_s, tail = u8(lease), u8(now), sec(lease), rules .. worker
local out, vanished, lacks = {int(now), 0, 0}, 0, 0
local at, sha1hex, room = 3, redis.sha1hex, 32 * 1048576 -- bytes of messages in one answer
local popped -- of the queue being taken from: out of pending, not yet active with a lease

-- Fences only grow: not after the counter was lost either, since they are not behind the clock.
local function fence_next(key)
  local f = (tonumber(call('GET', key) or '0') or 0) + 1
  if own_clock and f < now then f = now end
  call('SET', key, int(f))
  return u8(f)
end

local function take(q)
  local k = q * 16
  local pending, prefix = KEYS[k + 1], KEYS[k + 15]
  if call('EXISTS', KEYS[k + 8], KEYS[k + 16]) == 0 then
    go_though_full(KEYS[k + 3])
    vanished = vanished + forward(KEYS[k + 4], pending, prefix, now, n + 100)
    vanished = vanished + forward(KEYS[k + 5], pending, prefix, now, n + 100)
    local known = rules == '0000000000000000' or call('HEXISTS', KEYS[k + 12], rules) == 1
    if not known and call('EXISTS', pending) == 1 then
      lacks = q + 1
      return
    end
    local fence8 = known and call('EXISTS', pending) == 1 and call('LLEN', KEYS[k + 2]) and fence_next(KEYS[k + 11])
    local ids = fence8 and call('RPOP', pending, n)
    if ids then
      popped = ids
      local runs, waits = '\3' .. fence8 .. lease8 .. now8, '\2' .. fence8 .. lease8 .. ZERO8
      local active, leases, seen, m = {}, {}, {}, 0
      for i = 1, #ids do
        local id = ids[i]
        local key = prefix .. id
        local t = ask('HMGET', key, 'msg', 'stint', 'state')
        local msg, f, state = t[1], t[2], t[3]
        if not msg then
          vanished = vanished + 1
        elseif state ~= 'pending' and
               (state == 'completed' or state == 'archived' or state == 'active' and (seen[id] or call('ZSCORE', KEYS[k + 3], id))) then
          seen[id] = true -- it was in the list twice
        else
          seen[id] = true
          if not f or #f < 64 or byte(f) ~= 1 then
            local since = call('HGET', key, 'pending_since')
            f = foreign(floor((tonumber(since or '') or now * 1000) / 1000))
          end
          local mark, meta = (#msg > 65536 and digest(msg) or sub(sha1hex(msg), 1, 16)), false
          if run > 0 then
            run = run - 1
            local first = byte(f, 42) == 0 and ZERO8 or sub(f, 41, 48)
            f = sub(f, 1, 2) .. '\0' .. sub(f, 4, 40) .. (first == ZERO8 and now8 or first) .. sub(f, 49, 64) .. runs .. mark .. tail
          else
            f = (#f == 64 and f or sub(f, 1, 64)) .. waits .. mark .. tail
          end
          call('HSET', key, 'state', 'active', 'stint', f)
          call('HDEL', key, 'pending_since')
          local flags = byte(f, 2)
          if flags >= ACTIVE then -- seldom
            if has(flags, META) then meta = call('HGET', key, 'stint_meta') end
            if has(flags, ACTIVE) then
              local lock = call('HGET', key, 'unique_key')
              if lock and ask('GET', lock) == id then call('EXPIRE', lock, 30 * 86400) end
            end
          end
          m = m + 1
          active[m] = id
          leases[2 * m - 1] = lease_s
          leases[2 * m] = id
          out[at + 1], out[at + 2], out[at + 3], out[at + 4], out[at + 5] = q + 1, id, msg, f, meta
          at = at + 5
          room = room - #msg
          if room < 0 then -- the others stay where they were, the next one first
            local rest = {}
            for r = #ids, i + 1, -1 do rest[#rest + 1] = ids[r] end
            if #rest > 0 then call('RPUSH', pending, unpack(rest)) end
            n = m
            break
          end
        end
      end
      if m > 0 then
        call('LPUSH', KEYS[k + 2], unpack(active))
        call('ZADD', KEYS[k + 3], unpack(leases))
      end
      popped = nil
      n = n - m
    end
  end
end

-- A user may be allowed some of the commands and not the others, and a script that fails keeps what it has written.  What
-- was taken in vain goes back to where it was; what it says of itself does not matter, since it has no lease.
local function put_back(q)
  local pending, active, back = KEYS[q * 16 + 1], KEYS[q * 16 + 2], {}
  for i = #popped, 1, -1 do
    ask('LREM', active, 1, popped[i])
    back[#back + 1] = popped[i]
  end
  ask('RPUSH', pending, unpack(back))
  popped = nil
end

-- A queue whose keys are of another kind is passed over, and what the others gave is told in any case: it is held by now.
local broken
local gone = 0
for q = 0, #KEYS / 16 - 1 do
  if n <= 0 or lacks > 0 then break end
  local told = at
  local ok, why = pcall(take, q)
  if vanished > 0 then
    if gone == 0 then gone = {} end
    gone[#gone + 1] = q + 1
    gone[#gone + 1] = vanished
    vanished = 0
  end
  if not ok then
    if popped then
      put_back(q)
      at = told
    end
    why = type(why) == 'table' and why.err or tostring(why)
    why = string.match(why, '^@user_script.-%-(%u+ .*)') or why -- as Redis 6.2 has it
    local kind = string.find(why, 'WRONGTYPE', 1, true)
    if at == 3 and (not kind or #KEYS == 16) then return redis.error_reply(string.find(why, '^%u+ ') and why or 'ERR ' .. why) end
    if not kind then break end
    broken = q + 1
  end
end
if broken and lacks == 0 then lacks = -broken end
out[2], out[3] = lacks, gone
return out
