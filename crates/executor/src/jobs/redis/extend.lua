-- Renews a lease. ARGV: prefix, consumer, lane, entry, id, counter, attempt
local p, stream, job = ARGV[1], ARGV[1] .. ARGV[3], ARGV[1] .. 'job:' .. ARGV[5]
if redis.call('HGET', job, ARGV[6]) ~= ARGV[7] then return 0 end
if ARGV[6] == 'run' and redis.call('HGET', job, 'state') ~= 'running' then return 0 end
local mine = redis.call('XPENDING', stream, 'executors', ARGV[4], ARGV[4], 1, ARGV[2])
if not mine[1] then return 0 end
redis.call('XCLAIM', stream, 'executors', ARGV[2], 0, ARGV[4], 'JUSTID')
return 1
