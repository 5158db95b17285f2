-- Which held jobs of one queue may be reaped: leases of ours that have ended, and those of stock servers half a minute later.
-- ARGV: now, the worker who asks (its own are left alone), how many at most
-- Returns now, then per job: id, lease, msg without its payload, packed field or '', the text of the rules it was claimed with or '',
-- digest of msg.
-- An entry without a task is removed.
local now, me, max = clock(ARGV[1]), ARGV[2], tonumber(ARGV[3])
local out, at, offset = {int(now)}, 1, 0
local texts = {}

local function rules(ref)
  if texts[ref] == nil then texts[ref] = call('HGET', KEYS[12], ref) or '' end
  return texts[ref]
end

while max > 0 do
  local page = call('ZRANGEBYSCORE', KEYS[3], '-inf', sec(now), 'WITHSCORES', 'LIMIT', offset, 100)
  local gone = 0
  for i = 1, #page, 2 do
    local id, score = page[i], page[i + 1]
    local t = ask('HMGET', KEYS[15] .. id, 'msg', 'stint', 'state')
    local ours = holds(t[2], t[3], score)
    if not t[1] then
      call('ZREM', KEYS[3], id)
      call('LREM', KEYS[2], 0, id)
      gone = gone + 1
    elseif max > 0 and (ours and sub(t[2], 122) ~= me or not ours and tonumber(score) <= now / 1000000 - 30) then
      out[at + 1], out[at + 2], out[at + 3] = id, score, msg_slim(t[1])
      out[at + 4], out[at + 5], out[at + 6] = ours and t[2] or '', ours and rules(sub(t[2], 106, 121)) or '', digest(t[1])
      at, max = at + 6, max - 1
    end
  end
  if #page < 200 then break end
  offset = offset + 100 - gone
end
return out
