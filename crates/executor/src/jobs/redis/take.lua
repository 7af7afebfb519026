-- The next task: of what is due again first, then what a killed executor left, then what is new; high priorities first.
-- ARGV: prefix, consumer, lease in ms, counter of attempts ('run', 'call'), lanes...
-- Returns { lane, entry, id, attempt, request, callback }, or the last entry of each lane.
local p, consumer, lease, counter = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4]
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
local due = redis.call('ZRANGE', p .. 'later', '-inf', now, 'BYSCORE', 'LIMIT', 0, 100)
for _, task in ipairs(due) do
  local lane, id = string.match(task, '^(%a+):(%x+)$')
  redis.call('ZREM', p .. 'later', task)
  redis.call('XADD', p .. lane, '*', 'id', id)
end
for i = 5, #ARGV do
  local lane = ARGV[i]
  local stream = p .. lane
  -- Fails where the group is there. Each time, for Redis may have been emptied.
  redis.pcall('XGROUP', 'CREATE', stream, 'executors', '0', 'MKSTREAM')
  while true do
    local entry
    local left = redis.call('XPENDING', stream, 'executors', 'IDLE', lease, '-', '+', 1)
    if left[1] then
      entry = redis.call('XCLAIM', stream, 'executors', consumer, lease, left[1][1])[1]
      if not entry then redis.call('XACK', stream, 'executors', left[1][1]) end
    else
      local read = redis.call('XREADGROUP', 'GROUP', 'executors', consumer, 'COUNT', 1, 'STREAMS', stream, '>')
      if not read then break end
      entry = read[1][2][1]
    end
    if entry then
      local id = entry[2][2]
      local job = p .. 'job:' .. id
      local state = redis.call('HGET', job, 'state')
      local open = state and (counter == 'call' or state == 'queued' or state == 'running')
      if open then
        local attempt = redis.call('HINCRBY', job, counter, 1)
        if counter == 'run' then redis.call('HSET', job, 'state', 'running') end
        local fields = redis.call('HMGET', job, 'request', 'callback')
        return { 'task', lane, entry[1], id, attempt, fields[1], fields[2] or '' }
      end
      redis.call('XACK', stream, 'executors', entry[1])
      redis.call('XDEL', stream, entry[1])
    end
  end
end
local last = { 'none' }
for i = 5, #ARGV do
  local info = redis.call('XINFO', 'STREAM', p .. ARGV[i])
  for at = 1, #info, 2 do
    if info[at] == 'last-generated-id' then table.insert(last, info[at + 1]) end
  end
end
return last
