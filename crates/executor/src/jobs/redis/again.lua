-- Puts a task back. ARGV: prefix, consumer, lane, entry, id, counter, attempt, after in ms, why
local p, stream, job = ARGV[1], ARGV[1] .. ARGV[3], ARGV[1] .. 'job:' .. ARGV[5]
if redis.call('HGET', job, ARGV[6]) ~= ARGV[7] then return 0 end
if ARGV[6] == 'run' and redis.call('HGET', job, 'state') ~= 'running' then return 0 end
if not redis.call('XPENDING', stream, 'executors', ARGV[4], ARGV[4], 1, ARGV[2])[1] then return 0 end
redis.call('XACK', stream, 'executors', ARGV[4])
redis.call('XDEL', stream, ARGV[4])
local t = redis.call('TIME')
redis.call('ZADD', p .. 'later', t[1] * 1000 + math.floor(t[2] / 1000) + tonumber(ARGV[8]), ARGV[3] .. ':' .. ARGV[5])
if ARGV[6] == 'run' then redis.call('HSET', job, 'state', 'queued', 'error', ARGV[9]) end
return 1
