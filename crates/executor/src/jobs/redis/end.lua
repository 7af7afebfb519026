-- Ends a task, once. ARGV: prefix, lane, entry, id, counter, state, why, answer or '', keep in ms
local p, stream, id, counter, state = ARGV[1], ARGV[1] .. ARGV[2], ARGV[4], ARGV[5], ARGV[6]
local job = p .. 'job:' .. id
redis.call('XACK', stream, 'executors', ARGV[3])
redis.call('XDEL', stream, ARGV[3])
local before = redis.call('HMGET', job, 'state', 'callback_state', 'key', 'callback')
if not before[1] then return 0 end
if counter == 'call' then
  if before[2] ~= 'pending' then return 0 end
  redis.call('HSET', job, 'callback_state', state == 'dead' and 'failed' or 'delivered')
  return 1
end
if before[1] ~= 'queued' and before[1] ~= 'running' then return 0 end
redis.call('HSET', job, 'state', state, 'error', ARGV[7])
if ARGV[8] ~= '' then redis.call('HSET', job, 'answer', ARGV[8]) end
redis.call('HDEL', p .. 'open', id)
redis.call('PEXPIRE', job, ARGV[9])
if before[3] ~= '' then redis.call('PEXPIRE', p .. 'key:' .. before[3], ARGV[9]) end
if before[2] == 'pending' then redis.call('XADD', p .. 'callback', '*', 'id', id) end
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
redis.call('ZREMRANGEBYSCORE', p .. 'dead', '-inf', now - tonumber(ARGV[9]))
if state == 'dead' then redis.call('ZADD', p .. 'dead', now, id) end
redis.call('XADD', p .. 'ended', 'MAXLEN', '~', 1000, '*', 'id', id)
return 1
