-- A new job, unless its key is known or too many wait.
-- ARGV: prefix, id, priority, key or '', fingerprint, request, callback or '', most jobs
local p, id, priority, key = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
if key ~= '' then
  local known = redis.call('GET', p .. 'key:' .. key)
  if known then
    local same = redis.call('HGET', p .. 'job:' .. known, 'fingerprint') == ARGV[5]
    return { same and 'known' or 'conflict', known }
  end
end
if redis.call('HLEN', p .. 'open') >= tonumber(ARGV[8]) then return { 'full', '' } end
if key ~= '' then redis.call('SET', p .. 'key:' .. key, id) end
redis.call('HSET', p .. 'job:' .. id, 'state', 'queued', 'priority', priority, 'key', key, 'fingerprint', ARGV[5],
  'request', ARGV[6], 'callback', ARGV[7], 'callback_state', ARGV[7] ~= '' and 'pending' or '', 'run', 0, 'call', 0, 'error', '')
redis.call('HSET', p .. 'open', id, priority)
redis.call('XADD', p .. priority, '*', 'id', id)
return { 'new', id }
