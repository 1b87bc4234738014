-- Decides about requests of one key, and publishes what one server uses of the key's limits.
--
-- KEYS: live figures by server; admitted requests; spend of the budget's period by server.
-- ARGV: server; limits (requests, concurrency, tokens per minute, budget; -1 is none); own figures
--       (concurrency, reserved tokens, tokens of the last minute, spend); known spend of others;
--       days to keep the spend; requests that were admitted without Redis, and all admitted requests
--       of the last minute; then for each request its least and its wanted tokens.
--
-- Returns the figures of all servers; for each request a verdict and the reserved tokens; and the
-- spend of every other server. Verdicts: 0 admitted, 1 requests, 2 tokens, 3 concurrency, 4 budget.

local WINDOW, ALIVE, FINE = 60000, 10000, 1000
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local me = ARGV[1]
local rpm, conc, tpm, budget = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
local concurrent, reserved, tokens, spent = tonumber(ARGV[6]), tonumber(ARGV[7]), tonumber(ARGV[8]), tonumber(ARGV[9])
local known, days = tonumber(ARGV[10]), tonumber(ARGV[11])
-- A Redis that does not know the server has lost its data, so all requests of the last minute are new.
local is_known = redis.call('HEXISTS', KEYS[1], me) == 1
local added = tonumber(is_known and ARGV[12] or ARGV[13])

-- A server that has not published for ten seconds is dead: its requests have ended.
local all_concurrent, all_reserved, all_tokens = concurrent, reserved, tokens
local live = redis.call('HGETALL', KEYS[1])
for i = 1, #live, 2 do
  local at, c, r, t = string.match(live[i + 1], '^(%d+) (%d+) (%d+) (%d+)$')
  if not at or now - tonumber(at) > ALIVE then
    if live[i] ~= me then redis.call('HDEL', KEYS[1], live[i]) end
  elseif live[i] ~= me then
    all_concurrent = all_concurrent + tonumber(c)
    all_reserved = all_reserved + tonumber(r)
    all_tokens = all_tokens + tonumber(t)
  end
end

local others, spends = 0, {}
if budget >= 0 then
  redis.call('HSET', KEYS[3], me, string.format('%.0f', spent))
  redis.call('EXPIRE', KEYS[3], days * 86400)
  local all = redis.call('HGETALL', KEYS[3])
  for i = 1, #all, 2 do
    if all[i] ~= me then
      others = others + (tonumber(all[i + 1]) or 0)
      spends[#spends + 1] = all[i]
      spends[#spends + 1] = all[i + 1]
    end
  end
end
local spent_by_all = spent + math.max(others, known)

-- Requests of the last minute: one entry each for small limits, else one for 600 ms.
local requests, wait, reset, bucket = 0, 0, 0, nil
if rpm >= 0 and rpm <= FINE then
  local first = redis.call('LINDEX', KEYS[2], 0)
  while first and tonumber(first) + WINDOW < now do
    redis.call('LPOP', KEYS[2])
    first = redis.call('LINDEX', KEYS[2], 0)
  end
  requests = redis.call('LLEN', KEYS[2])
  if first then
    wait = tonumber(first) + WINDOW + 1 - now
    reset = tonumber(redis.call('LINDEX', KEYS[2], -1)) + WINDOW + 1 - now
  end
elseif rpm > FINE then
  bucket = math.floor(now / 600)
  local counts = redis.call('HGETALL', KEYS[2])
  local oldest, newest
  for i = 1, #counts, 2 do
    local at = tonumber(counts[i])
    if (at + 1) * 600 - 1 + WINDOW < now then
      redis.call('HDEL', KEYS[2], counts[i])
    else
      requests = requests + tonumber(counts[i + 1])
      oldest = math.min(oldest or at, at)
      newest = math.max(newest or at, at)
    end
  end
  if oldest then
    wait = (oldest + 1) * 600 + WINDOW - now
    reset = (newest + 1) * 600 + WINDOW - now
  end
end

requests = requests + added
local verdicts, admitted = {}, 0
for i = 14, #ARGV, 2 do
  local least, wanted = tonumber(ARGV[i]), tonumber(ARGV[i + 1])
  local left, verdict = math.huge, 0
  if budget >= 0 then
    left = budget - spent_by_all - all_reserved
    if math.max(left, 0) < least then verdict = 4 end
  end
  if verdict == 0 and rpm >= 0 and requests >= rpm then verdict = 1 end
  if verdict == 0 and tpm >= 0 then
    local left_now = tpm - all_tokens - all_reserved
    if math.max(left_now, 0) < least then verdict = 2 end
    left = math.min(left, left_now)
  end
  if verdict == 0 and conc >= 0 and all_concurrent >= conc then verdict = 3 end
  local granted = 0
  if verdict == 0 then
    if budget >= 0 or tpm >= 0 then granted = math.max(math.min(wanted, left), 0) end
    admitted = admitted + 1
    requests = requests + 1
    concurrent, all_concurrent = concurrent + 1, all_concurrent + 1
    reserved, all_reserved = reserved + granted, all_reserved + granted
  end
  verdicts[#verdicts + 1] = verdict
  verdicts[#verdicts + 1] = granted
end

if admitted + added > 0 and rpm >= 0 then
  if bucket then
    redis.call('HINCRBY', KEYS[2], bucket, admitted + added)
    reset = (bucket + 1) * 600 + WINDOW - now
  else
    for _ = 1, admitted + added do redis.call('RPUSH', KEYS[2], string.format('%.0f', now)) end
    reset = WINDOW + 1
  end
  redis.call('EXPIRE', KEYS[2], 120)
end
redis.call('HSET', KEYS[1], me, string.format('%.0f %.0f %.0f %.0f', now, concurrent, reserved, tokens))
redis.call('EXPIRE', KEYS[1], 120)
return {
  { requests, wait, reset, all_concurrent, all_reserved, all_tokens, spent_by_all }, verdicts, spends
}
