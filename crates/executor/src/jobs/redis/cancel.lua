-- Ends a job that was not answered yet. ARGV: prefix, id, keep in ms. Returns 'now', 'unknown', or the state that it ended in.
local p, id = ARGV[1], ARGV[2]
local job = p .. 'job:' .. id
local before = redis.call('HMGET', job, 'state', 'priority', 'callback_state', 'key')
if not before[1] then return 'unknown' end
if before[1] ~= 'queued' and before[1] ~= 'running' then return before[1] end
redis.call('HSET', job, 'state', 'cancelled', 'error', '')
redis.call('HDEL', p .. 'open', id)
redis.call('ZREM', p .. 'later', before[2] .. ':' .. id)
redis.call('PEXPIRE', job, ARGV[3])
if before[4] ~= '' then redis.call('PEXPIRE', p .. 'key:' .. before[4], ARGV[3]) end
-- Its entry in the stream of its priority goes when it is taken.
if before[3] == 'pending' then redis.call('XADD', p .. 'callback', '*', 'id', id) end
redis.call('XADD', p .. 'ended', 'MAXLEN', '~', 1000, '*', 'id', id)
return 'now'
