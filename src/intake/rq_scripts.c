/* SPDX-License-Identifier: Apache-2.0
 *
 * rq_scripts.c - RQ's moves, each one step for everybody else.
 *
 *     queue --take--> intermediate --start--> wip (one execution) --end--> finished, failed, scheduled, queue
 *                          `---------------------- end -------------------^
 *
 * A script that fails keeps what it has written.  So what a message is moved between is looked at before it is taken from anywhere, and
 * what is only told beside that may be of any kind, since anybody may write it: the rest is done, and then the error is told.
 *
 * Invariant: an end happens only to a message that is where its holder left it: in the intermediate list, or in wip under
 * the holder's own execution.  So repeating one does nothing, and a holder that was given up changes nothing.
 */
#include "intake/rq_scripts.h"

/* KEYS: rq:suspended, then per queue: queue, intermediate, scheduled, scheduler's lock.  ARGV: n, now, now as text, the most
 * bytes of data that are read, the longest id.
 * What is due in `scheduled` goes to its queue first, unless a scheduler of RQ's own does that.  Data that is too large is not
 * sent, nor is any other field, since anybody may write them; ids without a job, and ids that are no ids of RQ's making, are dropped, so many at a time.  A key of the wrong kind does not
 * hold up the other queues.
 * Gives 1 = suspended, how many were dropped, the last error, then of each message id, number of the queue, data, 1 = it was begun before,
 * bytes of the data. */
struct st_redis_script st_rq_script_take = {
    "rq_take",
    "local n, most, bytes, out = tonumber(ARGV[1]), tonumber(ARGV[4]), 0, {0, 0, ''}\n"
    "local function try(...)\n"
    "  local r = redis.pcall(...)\n"
    "  if type(r) ~= 'table' or not r.err then return r end\n"
    "  if not r.err:find('WRONGTYPE', 1, true) then return redis.call(...) end\n"
    "  out[3] = select(2, ...) .. ': ' .. r.err\n"
    "end\n"
    "for i = 2, #KEYS, 4 do\n"
    "  if redis.call('EXISTS', KEYS[i + 3]) == 0 then\n"
    "    for _, id in ipairs(try('ZRANGEBYSCORE', KEYS[i + 2], '-inf', ARGV[2], 'LIMIT', 0, 100) or {}) do\n"
    "      if redis.call('EXISTS', 'rq:job:' .. id) == 0 then\n"
    "        redis.call('ZREM', KEYS[i + 2], id)\n"
    "      elseif try('RPUSH', KEYS[i], id) then\n"
    "        redis.call('ZREM', KEYS[i + 2], id)\n"
    "        try('HSET', 'rq:job:' .. id, 'status', 'queued', 'enqueued_at', ARGV[3])\n"
    "      end\n"
    "    end\n"
    "  end\n"
    "end\n"
    "if redis.call('EXISTS', KEYS[1]) == 1 then out[1] = 1; return out end\n"
    "for i = 2, #KEYS, 4 do\n"
    "  while n > 0 and out[2] < 1000 do\n"
    "    local id = try('LMOVE', KEYS[i], KEYS[i + 1], 'LEFT', 'RIGHT')\n"
    "    if not id then break end\n"
    "    local job, bad = 'rq:job:' .. id, #id > tonumber(ARGV[5]) or id:find('%z')\n"
    "    local len = not bad and redis.call('EXISTS', job) == 1 and try('HSTRLEN', job, 'data')\n"
    "    if len then\n"
    "      local data = len <= most and redis.call('HGET', job, 'data') or ''\n"
    "      local again = redis.call('HSTRLEN', job, 'started_at') + redis.call('HSTRLEN', job, 'stint') > 0\n"
    "      n = n - 1\n"
    "      bytes = bytes + #data\n"
    "      if bytes > 8 * most then n = 0 end\n"
    "      out[#out + 1] = {id, (i - 2) / 4, data, again and 1 or 0, len}\n"
    "    else\n"
    "      redis.call('LREM', KEYS[i + 1], -1, id)\n"
    "      out[2] = out[2] + 1\n"
    "    end\n"
    "  end\n"
    "end\n"
    "return out\n",
    "",
};

/* An execution of a job begins. */
#define BEGIN                                                                                                          \
    "local function begin(job, wip, id, exec, text, now, ttl, worker)\n"                                               \
    "  local key, all = 'rq:execution:' .. id .. ':' .. exec, 'rq:executions:' .. id\n"                                \
    "  redis.call('HSET', key, 'id', exec, 'job_id', id, 'created_at', now, 'last_heartbeat', now, 'worker_name', "    \
    "worker)\n"                                                                                                        \
    "  redis.call('EXPIRE', key, ttl)\n"                                                                               \
    "  redis.pcall('ZADD', all, now + ttl + 60, exec)\n"                                                               \
    "  redis.call('EXPIRE', all, ttl + 60)\n"                                                                          \
    "  redis.call('ZADD', wip, now + ttl, id .. ':' .. exec)\n"                                                        \
    "  redis.call('HSET', job, 'status', 'started', 'started_at', text, 'last_heartbeat', text, 'worker_name', "       \
    "worker)\n"                                                                                                        \
    "  redis.call('PERSIST', job)\n"                                                                                   \
    "end\n"

/* KEYS: job, wip, intermediate.  ARGV: id, execution, now as text, now, ttl, worker. */
struct st_redis_script st_rq_script_start = {
    "rq_start",
    BEGIN "redis.call('ZCARD', KEYS[2])\n"
          "redis.call('LREM', KEYS[3], 1, ARGV[1])\n"
          "if redis.call('EXISTS', KEYS[1]) == 0 then return 0 end\n"
          "begin(KEYS[1], KEYS[2], ARGV[1], ARGV[2], ARGV[3], ARGV[4], tonumber(ARGV[5]), ARGV[6])\n"
          "return 1\n",
    "",
};

/* KEYS: job, wip, intermediate, queue, worker.
 * ARGV: how, id, execution, now as text, now, value, queue's name, worker, when, started, seconds worked, "1" = a failure. */
struct st_redis_script st_rq_script_end = {
    "rq_end",
    "local how, id, exec, job, now = ARGV[1], ARGV[2], ARGV[3], KEYS[1], tonumber(ARGV[5])\n"
    "local ours, odd\n"
    "local function ask(...)\n"
    "  local r = redis.pcall(...)\n"
    "  if type(r) ~= 'table' or not r.err then return r end\n"
    "  odd = odd or r\n"
    "  return {}\n"
    "end\n"
    "if how == 'requeue' then redis.call('LLEN', KEYS[4])\n"
    "elseif how == 'schedule' then redis.call('ZCARD', 'rq:scheduled:' .. ARGV[7]) end\n"
    "if exec ~= '' then\n"
    "  ours = redis.call('ZREM', KEYS[2], id .. ':' .. exec)\n"
    "  redis.call('DEL', 'rq:execution:' .. id .. ':' .. exec)\n"
    "  ask('ZREM', 'rq:executions:' .. id, exec)\n"
    "else\n"
    "  ours = redis.call('LREM', KEYS[3], 1, id)\n"
    "end\n"
    "local over = how ~= 'requeue' and how ~= 'schedule'\n"
    "if ours == 0 and over then ours = redis.call('LREM', KEYS[3], 1, id) end\n" /* its start was not written */
    "if ours == 0 or redis.call('EXISTS', job) == 0 then return 0 end\n"
    "for _, e in ipairs(exec == '' and ask('ZRANGE', 'rq:executions:' .. id, 0, -1) or {}) do\n"
    "  if redis.call('ZSCORE', KEYS[2], id .. ':' .. e) then return 0 end\n" /* the id was there twice, and runs by the other */
    "end\n"
    "local function count(field)\n"
    "  if redis.call('EXISTS', KEYS[5]) == 0 then return end\n"
    "  ask('HINCRBY', KEYS[5], field, 1)\n"
    "  if ARGV[11] ~= '0' then ask('HINCRBYFLOAT', KEYS[5], 'total_working_time', ARGV[11]) end\n"
    "end\n"
    "if how == 'requeue' then\n"
    "  redis.call('HSET', job, 'status', 'queued', 'worker_name', '')\n"
    "  redis.call('LPUSH', KEYS[4], id)\n"
    "  return 1\n"
    "end\n"
    "if how == 'schedule' then\n"
    "  redis.call('HSET', job, 'status', 'scheduled', 'worker_name', '')\n"
    "  redis.call('ZADD', 'rq:scheduled:' .. ARGV[7], ARGV[9], id)\n"
    "  if ARGV[12] == '1' then count('failed_job_count') end\n"
    "  return 1\n"
    "end\n"
    "local good = how == 'finished'\n"
    "local ttl = tonumber(redis.call('HGET', job, good and 'result_ttl' or 'failure_ttl') or '')\n"
    "ttl = math.ceil(ttl or (good and 500 or 31536000))\n"
    "if ttl ~= ttl or ttl > 4e9 or ttl < 0 then ttl = -1 end\n" /* what EXPIRE does not take is for ever */
    "redis.call('HSET', job, 'status', how, 'ended_at', ARGV[4], 'worker_name', ARGV[8])\n"
    "count(good and 'successful_job_count' or 'failed_job_count')\n"
    "if ttl ~= 0 then\n"
    "  local args = {'XADD', 'rq:results:' .. id, 'MAXLEN', '~', 10, '*', 'type', good and 1 or 2, 'worker_name', "
    "ARGV[8]}\n"
    "  local function put(k, v) args[#args + 1] = k; args[#args + 1] = v end\n"
    "  if ARGV[6] ~= '' then put(good and 'return_value' or 'exc_string', ARGV[6]) end\n"
    "  if exec ~= '' then put('execution_id', exec) end\n"
    "  if ARGV[10] ~= '0' then put('execution_started_at', ARGV[10]) end\n"
    "  put('execution_ended_at', ARGV[5])\n"
    "  ask(unpack(args))\n"
    "  local kept = (good and 'rq:finished:' or 'rq:failed:') .. ARGV[7]\n"
    "  ask('ZADD', kept, ttl > 0 and now + ttl or good and '+inf' or ttl, id)\n"
    "end\n"
    "for _, dep in ipairs(ask('SMEMBERS', 'rq:job:' .. id .. ':dependents')) do\n"
    "  local h = ask('HMGET', 'rq:job:' .. dep, 'status', 'origin', 'allow_dependency_failures', 'enqueue_at_front')\n"
    "  local ready = h[1] == 'deferred' and h[2]\n"
    "  for _, p in ipairs(ready and ask('SMEMBERS', 'rq:job::' .. dep .. ':dependencies') or {}) do\n"
    "    if p:sub(1, 7) == 'rq:job:' then p = p:sub(8) end\n"
    "    local s = ask('HGET', 'rq:job:' .. p, 'status')\n"
    "    if s and s ~= 'finished' and not (h[3] == '1' and s == 'failed') then ready = false end\n"
    "  end\n"
    "  if ready and type(ask(h[4] == '1' and 'LPUSH' or 'RPUSH', 'rq:queue:' .. h[2], dep)) == 'number' then\n"
    "    ask('ZREM', 'rq:deferred:' .. h[2], dep)\n"
    "    redis.call('SREM', 'rq:job:' .. id .. ':dependents', dep)\n"
    "    redis.call('HSET', 'rq:job:' .. dep, 'status', 'queued', 'enqueued_at', ARGV[4])\n"
    "    ask('SADD', 'rq:queues', 'rq:queue:' .. h[2])\n"
    "  end\n"
    "end\n"
    "for _, key in ipairs({job, 'rq:job:' .. id .. ':dependents', 'rq:results:' .. id}) do\n"
    "  if ttl == 0 then redis.call('DEL', key)\n"
    "  elseif ttl > 0 then redis.call('EXPIRE', key, ttl)\n"
    "  else redis.call('PERSIST', key) end\n"
    "end\n"
    "return odd or 1\n",
    "",
};

/* KEYS: worker, then per running job: job, wip, intermediate.  ARGV: now as text, now, ttl, ttl of the worker, worker, then per
 * running job: id, execution, its start as text.  A job whose start is not written (the server was away) still lies in the
 * intermediate list: it begins now.  0 = the worker is not known here. */
struct st_redis_script st_rq_script_beat = {
    "rq_beat",
    BEGIN
    "local now, ttl = ARGV[2], tonumber(ARGV[3])\n"
    "local known = redis.call('HEXISTS', KEYS[1], 'birth')\n" /* the key alone may be what is left of one that was deleted */
    "if known == 1 then\n"
    "  redis.call('HSET', KEYS[1], 'last_heartbeat', ARGV[1])\n"
    "  redis.call('EXPIRE', KEYS[1], ARGV[4])\n"
    "end\n"
    "for i = 2, #KEYS, 3 do\n"
    "  local id, exec, there = ARGV[i + 4], ARGV[i + 5], redis.call('EXISTS', KEYS[i]) == 1\n"
    "  local begun = redis.call('ZSCORE', KEYS[i + 1], id .. ':' .. exec)\n"
    "  if there and not begun and redis.call('LREM', KEYS[i + 2], 1, id) == 1 then\n"
    "    begin(KEYS[i], KEYS[i + 1], id, exec, ARGV[i + 6], now, ttl, ARGV[5])\n"
    "  elseif there and begun then\n"
    "    local key, all = 'rq:execution:' .. id .. ':' .. exec, 'rq:executions:' .. id\n"
    "    redis.call('HSET', key, 'last_heartbeat', now)\n"
    "    redis.call('EXPIRE', key, ttl)\n"
    "    redis.pcall('ZADD', all, now + ttl + 60, exec)\n"
    "    redis.call('EXPIRE', all, ttl + 60)\n"
    "    redis.call('ZADD', KEYS[i + 1], 'XX', now + ttl, id .. ':' .. exec)\n"
    "    redis.call('HSET', KEYS[i], 'last_heartbeat', ARGV[1])\n"
    "  end\n"
    "end\n"
    "return known\n",
    "",
};

/* KEYS: queue, intermediate, finished, failed.  ARGV: now.  Whatever lies in the intermediate list for a minute goes back to the
 * head of the queue; the marks of when it was first seen are RQ's own.  Whoever had it may have begun its run: that is noted in
 * a field of ours. */
struct st_redis_script st_rq_script_stuck = {
    "rq_stuck",
    "local now, n = tonumber(ARGV[1]), 0\n"
    "for _, id in ipairs(redis.call('LRANGE', KEYS[2], 0, 199)) do\n"
    "  local seen = KEYS[2] .. ':first_seen:' .. id\n"
    "  if not redis.call('SET', seen, ARGV[1], 'NX', 'EX', 300) then\n"
    "    local at = tonumber(redis.pcall('GET', seen))\n"
    "    if not at then redis.call('DEL', seen) end\n" /* somebody else's: seen the next time */
    "    if at and now - at > 60 and redis.call('LREM', KEYS[2], 1, id) == 1 then\n"
    "      redis.call('DEL', seen)\n"
    "      if redis.call('EXISTS', 'rq:job:' .. id) == 1 then\n"
    "        redis.pcall('HSET', 'rq:job:' .. id, 'stint', 'again')\n" /* what is no job is dropped when it is taken */
    "        redis.call('LPUSH', KEYS[1], id)\n"
    "        n = n + 1\n"
    "      end\n"
    "    end\n"
    "  end\n"
    "end\n"
    "redis.pcall('ZREMRANGEBYSCORE', KEYS[3], 0, now)\n"
    "redis.pcall('ZREMRANGEBYSCORE', KEYS[4], 0, now)\n"
    "return n\n",
    "",
};

/* KEYS: wip.  ARGV: now, how many are passed over, how many are wanted, the most bytes of data that are read.
 * Started jobs whose time is up, with their data; those of which RQ has no job go.  A member is "job:execution", or the job
 * alone as older versions wrote it.  Data that is too large or not there is "".
 * Gives how many were looked at, then member, id and data of those that are still there. */
struct st_redis_script st_rq_script_lost = {
    "rq_lost",
    "local most, bytes, out = tonumber(ARGV[4]), 0, {0}\n"
    "for _, m in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', ARGV[1], 'LIMIT', ARGV[2], ARGV[3])) do\n"
    "  out[1] = out[1] + 1\n"
    "  local id = redis.call('EXISTS', 'rq:job:' .. m) == 1 and m or m:match('^(.*):[^:]*$') or m\n"
    "  local job = 'rq:job:' .. id\n"
    "  if #m > 4096 or redis.call('EXISTS', job) == 0 then\n" /* nobody's id is so long */
    "    redis.call('ZREM', KEYS[1], m)\n"
    "  else\n"
    "    local len = redis.pcall('HSTRLEN', job, 'data')\n" /* a key of another kind is nobody's */
    "    local data = type(len) == 'number' and len <= most and redis.call('HGET', job, 'data') or ''\n"
    "    bytes = bytes + #data\n"
    "    out[#out + 1] = {m, id, data}\n"
    "    if bytes > 8 * most then break end\n"
    "  end\n"
    "end\n"
    "return out\n",
    "",
};

/* KEYS: job, wip, queue.  ARGV: member of wip, id, now.  A started job whose time is up goes back to the head of its queue. */
struct st_redis_script st_rq_script_back = {
    "rq_back",
    "local score = redis.call('ZSCORE', KEYS[2], ARGV[1])\n"
    "if not score or tonumber(score) > tonumber(ARGV[3]) then return 0 end\n"
    "redis.call('LLEN', KEYS[3])\n"
    "redis.call('ZREM', KEYS[2], ARGV[1])\n"
    "if redis.call('EXISTS', KEYS[1]) == 0 then return 0 end\n"
    "redis.call('HSET', KEYS[1], 'status', 'queued', 'worker_name', '')\n"
    "redis.call('LPUSH', KEYS[3], ARGV[2])\n"
    "return 1\n",
    "",
};

void st_rq_scripts_init(void)
{
    st_redis_script_init(&st_rq_script_take);
    st_redis_script_init(&st_rq_script_start);
    st_redis_script_init(&st_rq_script_end);
    st_redis_script_init(&st_rq_script_beat);
    st_redis_script_init(&st_rq_script_stuck);
    st_redis_script_init(&st_rq_script_lost);
    st_redis_script_init(&st_rq_script_back);
}
