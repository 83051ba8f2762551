-- What one cache in a Valkey or Redis server does in one step (docs/decisions.md, D43). Each call is atomic, and its
-- writes are one transaction in the append-only file: whole after a crash, or absent.
--
-- KEYS[1]: what every key of this cache begins with. ARGV[1]: the operation; the rest: its arguments.
-- A time is microseconds of the server's clock. An answer is a list of strings, the first of which says what happened.
--
--   version          the last version given           octets       octets of all objects
--   o:NAME           an object's octets               l:NAME       a log's octets
--   i:NAME           size, version, owner, created    m:NAME       version, size, fence, epoch
--   h:NAME           its leases, by their end         e:NAME       a lease: owner, ends, objects
--   unleased         objects without lease, by use    ends         leases, by their end
--   objects, logs, leases: names, for listings        appended     logs, by the version of their last append
--
-- A write that may be refused for want of memory comes before every other in its operation, or after one that made
-- refusal impossible: the server refuses only the first write of a script.

local prefix = KEYS[1]
local call = redis.call
local clock = call('TIME')
local now = clock[1] * 1000000 + clock[2]
local MANY = 1000  -- the most things that one call lets go: others wait for it
local UNUSED_FOR_A_MINUTE = 60 * 1000000

local function digits(number)
  return string.format('%.0f', number)
end

-- Rises with every change. No less than the time, so that it goes on rising where a server lost what it had.
local function new_version()
  local last = tonumber(call('GET', prefix .. 'version') or 0)
  local version = digits(math.max(last + 1, now))
  call('SET', prefix .. 'version', version)
  return version
end

local function size_of(name)
  return tonumber(call('HGET', prefix .. 'i:' .. name, 'size') or nil)
end

local function leased(name)
  return call('ZCOUNT', prefix .. 'h:' .. name, '(' .. digits(now), '+inf') > 0
end

local function remove(name, size)
  call('DEL', prefix .. 'o:' .. name, prefix .. 'i:' .. name, prefix .. 'h:' .. name)
  call('ZREM', prefix .. 'objects', name)
  call('ZREM', prefix .. 'unleased', name)
  call('DECRBY', prefix .. 'octets', size)
end

local function let_go(lease, name)
  call('ZREM', prefix .. 'h:' .. name, lease)
  if size_of(name) and call('EXISTS', prefix .. 'h:' .. name) == 0 then
    call('ZADD', prefix .. 'unleased', now, name)
  end
end

local function end_lease(lease)
  for name in string.gmatch(call('HGET', prefix .. 'e:' .. lease, 'objects'), '%S+') do
    let_go(lease, name)
  end
  call('DEL', prefix .. 'e:' .. lease)
  call('ZREM', prefix .. 'ends', lease)
  call('ZREM', prefix .. 'leases', lease)
end

local function end_leases()
  local due = call('ZRANGEBYSCORE', prefix .. 'ends', '-inf', now, 'LIMIT', 0, MANY)
  for _, lease in ipairs(due) do
    end_lease(lease)
  end
  return #due
end

local function remove_unused(age)
  local due = call('ZRANGEBYSCORE', prefix .. 'unleased', '-inf', now - age, 'LIMIT', 0, MANY)
  for _, name in ipairs(due) do
    remove(name, size_of(name))
  end
  return #due
end

-- Remove unleased objects of at least so many octets, least recently used first. If they are fewer: all of them where
-- `any` will do, else none. Say whether there is now more room, and as much as can be asked for.
local function evict(octets, any)
  local victims, first = {}, 0
  while octets > 0 do
    local names = call('ZRANGE', prefix .. 'unleased', first, first + 99)
    if #names == 0 and not (any and #victims > 0) then
      return false
    elseif #names == 0 then
      break
    end
    for _, name in ipairs(names) do
      if octets > 0 then
        local size = size_of(name)
        victims[#victims + 1] = { name, size }
        octets = octets - size
      end
    end
    first = first + #names
  end
  for _, victim in ipairs(victims) do
    remove(victim[1], victim[2])
  end
  return true
end

-- Make it the most recently used; not more often than once a minute, so that a read seldom is a write. Where memory is
-- full it stays where it was.
local function use(name)
  local last = call('ZSCORE', prefix .. 'unleased', name)
  if last and now - tonumber(last) > UNUSED_FOR_A_MINUTE then
    redis.pcall('ZADD', prefix .. 'unleased', now, name)
  end
end

local operations = {}

-- A write like any other, to see that this server takes them.
function operations.try()
  return { 'done', new_version() }
end

-- capacity: of all objects, in octets; 0: what the server's memory holds. age: of unleased objects that may go.
function operations.put(name, owner, data, capacity, age)
  if size_of(name) then
    if call('GET', prefix .. 'o:' .. name) ~= data then
      return { 'other' }
    end
    use(name)
    return { 'same' }
  end
  end_leases()
  remove_unused(tonumber(age))
  local total = tonumber(call('GET', prefix .. 'octets') or 0) + #data
  if tonumber(capacity) > 0 and not evict(total - tonumber(capacity), false) then
    return { 'full' }
  end
  call('SET', prefix .. 'o:' .. name, data)
  call('HSET', prefix .. 'i:' .. name, 'size', #data, 'version', new_version(), 'owner', owner, 'created', digits(now))
  call('ZADD', prefix .. 'objects', 0, name)
  call('ZADD', prefix .. 'unleased', now, name)
  call('INCRBY', prefix .. 'octets', #data)
  return { 'new' }
end

-- What is to be read next.
function operations.use(name)
  local size = size_of(name)
  if not size then
    return { 'absent' }
  end
  use(name)
  return { 'there', tostring(size) }
end

function operations.delete(name)
  end_leases()
  local size = size_of(name)
  if not size then
    return { 'absent' }
  end
  if leased(name) then
    return { 'leased' }
  end
  remove(name, size)
  return { 'done' }
end

-- For a server whose own memory is full.
function operations.evict(octets)
  end_leases()
  return { evict(tonumber(octets), true) and 'done' or 'full' }
end

-- ttl in microseconds. All of `objects`, names with a space between them, or none.
function operations.lease(lease, owner, ttl, objects)
  end_leases()
  local before = call('HMGET', prefix .. 'e:' .. lease, 'owner', 'objects')
  if before[1] and before[1] ~= owner then
    return { 'another' }
  end
  local names, wanted, missing = {}, {}, {}
  for name in string.gmatch(objects, '%S+') do
    if not size_of(name) then
      missing[#missing + 1] = name
    elseif not wanted[name] then
      wanted[name] = true
      names[#names + 1] = name
    end
  end
  if #missing > 0 then
    return { 'absent', table.concat(missing, ' ') }
  end
  local ends = digits(now + tonumber(ttl))
  for _, name in ipairs(names) do
    call('ZADD', prefix .. 'h:' .. name, ends, lease)
    call('ZREM', prefix .. 'unleased', name)
  end
  for name in string.gmatch(before[2] or '', '%S+') do
    if not wanted[name] then
      let_go(lease, name)
    end
  end
  call('HSET', prefix .. 'e:' .. lease, 'owner', owner, 'ends', ends, 'objects', table.concat(names, ' '))
  call('ZADD', prefix .. 'ends', ends, lease)
  call('ZADD', prefix .. 'leases', 0, lease)
  return { 'done' }
end

function operations.release(lease, owner)
  local holder = call('HGET', prefix .. 'e:' .. lease, 'owner')
  if holder and holder ~= owner then
    return { 'another' }
  end
  if holder then
    end_lease(lease)
  end
  return { 'done' }
end

-- expected: the version that the log must have, '' for none. longest: of the log, in octets. records: those of `data`,
-- each a letter, c for a commit record or f for a fence, and its epoch in 20 digits, which compare like their numbers.
-- The law is that of `sdcp.stores.records.follow`.
function operations.append(log, expected, data, longest, records)
  local octets, meta = prefix .. 'l:' .. log, prefix .. 'm:' .. log
  local state = call('HMGET', meta, 'version', 'size', 'fence', 'epoch')
  local size, fence, highest = tonumber(state[2] or 0), state[3] or '', state[4] or ''
  local length = call('STRLEN', octets)
  if length ~= size then
    return { 'damaged', tostring(math.min(length, size)) }
  end
  if (state[1] or '') ~= expected then
    return { 'moved' }
  end
  for record in string.gmatch(records, '%S+') do
    local kind, epoch = string.sub(record, 1, 1), string.sub(record, 2)
    if kind == 'c' and epoch < fence then
      return { 'below', epoch, fence }
    elseif kind == 'f' then
      if epoch <= highest then
        return { 'covered', epoch, highest }
      end
      fence = epoch
    end
    if epoch > highest then
      highest = epoch
    end
  end
  if size + #data > tonumber(longest) then
    return { 'full' }
  end
  call('APPEND', octets, data)
  local version = new_version()
  call('HSET', meta, 'version', version, 'size', size + #data, 'fence', fence, 'epoch', highest)
  call('ZADD', prefix .. 'appended', version, log)
  if expected == '' then
    call('ZADD', prefix .. 'logs', 0, log)
  end
  return { 'done', version }
end

-- first, last: octets, as of GETRANGE. (Not a transaction, which a server refuses while its memory is full.)
function operations.read(log, first, last)
  local octets = prefix .. 'l:' .. log
  local state = call('HMGET', prefix .. 'm:' .. log, 'version', 'size')
  local size, length = tonumber(state[2] or 0), call('STRLEN', octets)
  local data = call('GETRANGE', octets, first, last)
  if length ~= size then
    return { 'damaged', tostring(math.min(length, size)), data }
  elseif not state[1] then
    return { 'absent' }
  end
  return { 'there', state[1], data }
end

-- The same, and a write, after which WAITAOF waits for every append that was read.
function operations.read_settled(log, first, last)
  new_version()
  return operations.read(log, first, last)
end

-- Ages in microseconds: of objects since their last use, of logs since their last append; 0: logs stay. 'more' when
-- there may be more to let go than one call does.
function operations.sweep(age, retention)
  local most = math.max(end_leases(), remove_unused(tonumber(age)))
  if tonumber(retention) > 0 then
    local due = call('ZRANGEBYSCORE', prefix .. 'appended', '-inf', now - tonumber(retention), 'LIMIT', 0, MANY)
    for _, log in ipairs(due) do
      call('DEL', prefix .. 'l:' .. log, prefix .. 'm:' .. log)
      call('ZREM', prefix .. 'appended', log)
      call('ZREM', prefix .. 'logs', log)
    end
    most = math.max(most, #due)
  end
  return { most == MANY and 'more' or 'done' }
end

-- kind: objects, logs or leases. first, last: bounds as of ZRANGEBYLEX. Times are answered as ages and remainders.
function operations.list(kind, first, last, limit)
  local found = {}
  for place, name in ipairs(call('ZRANGEBYLEX', prefix .. kind, first, last, 'LIMIT', 0, limit)) do
    if kind == 'objects' then
      local info = call('HMGET', prefix .. 'i:' .. name, 'size', 'version', 'owner', 'created')
      local age = digits(now - tonumber(info[4]))
      found[place] = { name, info[1], info[2], info[3], age, leased(name) and '1' or '0' }
    elseif kind == 'logs' then
      local meta = call('HMGET', prefix .. 'm:' .. name, 'size', 'version')
      found[place] = { name, meta[1], meta[2], digits(now - tonumber(meta[2])) }
    else
      local lease = call('HMGET', prefix .. 'e:' .. name, 'owner', 'ends', 'objects')
      found[place] = { name, lease[1], digits(tonumber(lease[2]) - now), lease[3] }
    end
  end
  return found
end

return operations[ARGV[1]](unpack(ARGV, 2))
