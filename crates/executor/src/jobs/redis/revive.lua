-- Makes a dead letter a job again. ARGV: prefix, id
local p, id = ARGV[1], ARGV[2]
local job = p .. 'job:' .. id
local before = redis.call('HMGET', job, 'state', 'priority', 'callback', 'key')
if before[1] ~= 'dead' then return 0 end
redis.call('HSET', job, 'state', 'queued', 'run', 0, 'call', 0, 'callback_state', before[3] ~= '' and 'pending' or '')
redis.call('HDEL', job, 'answer')
redis.call('PERSIST', job)
if before[4] ~= '' then redis.call('PERSIST', p .. 'key:' .. before[4]) end
redis.call('ZREM', p .. 'dead', id)
redis.call('ZREM', p .. 'later', 'callback:' .. id)
redis.call('HSET', p .. 'open', id, before[2])
redis.call('XADD', p .. before[2], '*', 'id', id)
return 1
