-- Tells users at submit what is wrong with the deadline in their job's comment.
--
-- It reads the comment as tias_slurm/deadlines.py does, and says what that says. It never changes a job. If it fails
-- itself, the submit goes on. For a comment without our keys it costs one search in that text.
--
-- Alone: copy it to /etc/slurm/job_submit.lua and set JobSubmitPlugins=lua in slurm.conf.
-- Beside a job_submit.lua of your own: at its top
--     dofile("/usr/share/tias-slurm/tias.lua")
-- and in your functions
--     local code = tias_slurm.submit(job_desc, part_list)  -- in slurm_job_submit
--     local code = tias_slurm.modify(job_desc, job_rec)    -- in slurm_job_modify
--     if code ~= slurm.SUCCESS then return code end
-- Settings: those of the daemon, from its own file, by
--     tias-slurm show-config --lua > /etc/slurm/tias_settings.lua
-- which is read where it is there, and may be changed after the dofile: tias_slurm.settings.refuse = true
-- Works with Lua 5.1 to 5.5.

tias_slurm = {}

tias_slurm.settings = {
   refuse = false,        -- true: a job with a bad deadline is not taken; false: its user is told, and it is taken
   key = "deadline",      -- [deadlines] key
   accounts = {},         -- [deadlines] accounts, qos, partitions, users: who may have a deadline; empty: everybody
   qos = {},
   partitions = {},
   users = {},
   min_window_s = 0,      -- [deadlines] min_window_s
   max_window_s = nil,    -- [deadlines] max_window_s; nil: no limit
   machine_zone = true,   -- false if [deadlines] timezone is not the zone of this machine: then nothing is said
                          -- about times without an offset that lie in the past or in an hour that does not exist
}

-- what `tias-slurm show-config --lua` printed; without it the values above hold
tias_slurm.settings_file = "/etc/slurm/tias_settings.lua"
do
   local file = io.open(tias_slurm.settings_file)
   if file then
      file:close()
      local good, problem = pcall(dofile, tias_slurm.settings_file)
      if not good and slurm then pcall(slurm.log_info, "%s", "tias.lua: settings not read: " .. tostring(problem)) end
   end
end

local MAX_EPOCH = 253402300800
local MAX_JSON_CHARS = 65536
local MAX_DEPTH = 200
local OTHER_KEYS = { requeue = true, checkpoint = true, requeue_signal = true }
local UNITS = { w = 604800, d = 86400, h = 3600, m = 60, s = 1 }
local WORDS = { "week", "day", "hour", "minute", "second" }
local SIGNALS = {}
for name in ([[ABRT ALRM BUS CHLD CLD CONT FPE HUP ILL INT IO IOT KILL PIPE POLL PROF PWR QUIT RTMAX RTMIN SEGV STKFLT
      STOP SYS TERM TRAP TSTP TTIN TTOU URG USR1 USR2 VTALRM WINCH XCPU XFSZ]]):gmatch("%S+") do
   SIGNALS[name] = true
end
for _, word in ipairs(WORDS) do
   UNITS[word], UNITS[word .. "s"] = UNITS[word:sub(1, 1)], UNITS[word:sub(1, 1)]
end

-- a value that is refused, thrown by error() and caught in `read`
local function bad(code, text)
   error({ code = code, text = text }, 0)
end

local function whole(text, ...)  -- whether one of the patterns matches the whole text
   for _, pattern in ipairs({ ... }) do
      if text:find("^" .. pattern .. "$") then return true end
   end
   return false
end

-- ------------------------------------------------------------------ the forms

local function is_date(text) return whole(text, "%d%d%d%d%-%d%d%-%d%d") end

-- year, month, day, hour, minute, second and the offset's text of a time; nil: it is none
local function time_parts(text)
   local year, month, day, hour, minute, rest =
      text:upper():match("^(%d%d%d%d)%-(%d%d)%-(%d%d)T(%d%d):(%d%d)(.*)$")
   if not year then return nil end
   local second, offset = rest:match("^:(%d%d)(.*)$")
   if not second then second, offset = "0", rest end
   if offset ~= "" and not whole(offset, "Z", "[+-]%d%d:?%d%d") then return nil end
   return { tonumber(year), tonumber(month), tonumber(day), tonumber(hour), tonumber(minute), tonumber(second) }, offset
end

local function is_clock(text)
   text = text:lower()
   local bare = text:gsub("[ap]m$", "")
   return whole(text, "%d%d?[ap]m") or whole(bare, "t?%d%d?:%d%d", "t?%d%d?:%d%d:%d%d")
end

local function is_offset(text)
   text = text:upper()
   if whole(text, "Z", "UTC", "GMT", "[AP]M") then return true end
   text = text:match("^UTC(.*)$") or text:match("^GMT(.*)$") or text
   return whole(text, "[+-]%d%d?", "[+-]%d%d?:?%d%d")
end

local function is_other_date(text)
   text = text:upper()
   local date, rest = text:match("^([^T]*)(.*)$")
   if rest:find("\n", 1, true) then return false end
   return whole(date, "%d%d?%d?%d?/%d%d?", "%d%d?%d?%d?/%d%d?/%d%d?%d?%d?",
      "%d%d?%.%d%d?%.", "%d%d?%.%d%d?%.%d%d%d?%d?", "%d%d?%-%d%d?%-%d%d%d?%d?")
end

local function is_bare(text)
   text = text:lower():gsub("^now", "")
   return whole(text, "[+-]?%d+", "[+-]?%d+%.%d*")
end

-- seconds of a duration; nil: it is none, or its units do not fall. The second result: whether it has the form of one
local function duration(text)
   local total, last, falls, at = 0, math.huge, true, 1
   text = text:lower()
   while at <= #text do
      local digits, unit, after = text:match("^(%d+)(%a+)()", at)
      local size = unit and UNITS[unit]
      if not size or #digits > 12 then return nil, false end
      falls, last = falls and size < last, size
      total, at = total + tonumber(digits) * size, after
   end
   if at == 1 then return nil, false end
   return falls and total or nil, true
end

local function seconds(text, examples)
   if is_bare(text) then bad("no unit", "write a whole number with a unit: " .. examples) end
   local found = duration(text)
   if not found then bad("not a duration", "write whole numbers with units, the larger first: " .. examples) end
   return found
end

local function is_relative(text)
   text = text:lower()
   return text:sub(1, 1) == "+" or text:sub(1, 4) == "now+"
end

-- whether a value and the token after it look like one value with a blank inside
local function torn(value, after)
   if is_date(value) then return is_clock(after) end
   if time_parts(value) then return is_offset(after) end
   if not is_relative(value) then return false end
   local _, form = duration(after)
   return form
end

-- ------------------------------------------------------------------ the calendar

local function days_in(year, month)
   if month == 2 then return (year % 4 == 0 and (year % 100 ~= 0 or year % 400 == 0)) and 29 or 28 end
   return (month == 4 or month == 6 or month == 9 or month == 11) and 30 or 31
end

-- seconds since 1970 of a time in UTC
local function utc(p)
   local year = p[2] <= 2 and p[1] - 1 or p[1]
   local era = math.floor(year / 400)
   local of_era = year - era * 400
   local of_year = math.floor((153 * ((p[2] + 9) % 12) + 2) / 5) + p[3] - 1
   local days = era * 146097 + of_era * 365 + math.floor(of_era / 4) - math.floor(of_era / 100) + of_year - 719468
   return days * 86400 + p[4] * 3600 + p[5] * 60 + p[6]
end

-- seconds since 1970 of a time in this machine's zone, the earlier where it comes twice, and whether it exists
local function here(p)
   local naive = utc(p)
   if not tias_slurm.settings.machine_zone or naive < -172800 or naive >= MAX_EPOCH then return naive, true, true end
   local first, some
   for _, summer in ipairs({ true, false }) do
      local epoch = os.time({ year = p[1], month = p[2], day = p[3], hour = p[4], min = p[5], sec = p[6], isdst = summer })
      local back = epoch and os.date("*t", epoch)
      some = some or epoch
      if back and back.year == p[1] and back.month == p[2] and back.day == p[3] and back.hour == p[4]
         and back.min == p[5] and back.sec == p[6] and (not first or epoch < first) then
         first = epoch
      end
   end
   return first or some or naive, first ~= nil
end

local function check_day(p)
   if p[1] < 1 or p[2] < 1 or p[2] > 12 or p[3] < 1 or p[3] > days_in(p[1], p[2]) then
      bad("no such date", "the calendar has no such day; write another")
   end
end

local function within(epoch, key)
   if not (epoch >= 0 and epoch < MAX_EPOCH) then
      bad("out of range", "write epoch seconds (not milliseconds) or a date: " .. key .. "=2026-12-01T18:00")
   end
   return epoch
end

-- ------------------------------------------------------------------ the keys

local function moment(p, offset, key)
   if p[4] > 23 or p[5] > 59 or p[6] > 59 then
      bad("no such time", "hours go from 00 to 23, minutes to 59: " .. key .. "=2026-12-01T23:59")
   end
   local sign, hours, minutes = offset:match("^([+-])(%d%d):?(%d%d)$")
   if sign then
      local ahead = tonumber(hours) * 60 + tonumber(minutes)
      if ahead > 14 * 60 or tonumber(minutes) > 59 then
         bad("no such offset", "offsets go from -14:00 to +14:00: " .. key .. "=2026-12-01T18:00+01:00")
      end
      check_day(p)
      return utc(p) - (sign == "-" and -1 or 1) * ahead * 60
   end
   check_day(p)
   if offset ~= "" then return utc(p) end
   local epoch, exists, unsure = here(p)
   if not exists then
      bad("hour does not exist", "the clocks skip this hour that day; write an hour later")
   end
   return epoch, unsure
end

local function end_of_day(text)
   local year, month, day = text:match("^(%d+)%-(%d+)%-(%d+)$")
   local p = { tonumber(year), tonumber(month), tonumber(day), 0, 0, 0 }
   check_day(p)
   local next_day = { p[1], p[2], p[3] + 1, 0, 0, 0 }
   if next_day[3] > days_in(p[1], p[2]) then
      next_day[2], next_day[3] = p[2] + 1, 1
      if next_day[2] > 12 then next_day[1], next_day[2] = p[1] + 1, 1 end
   end
   if next_day[1] > 9999 then bad("no such date", "the calendar has no such day; write another") end
   local epoch, _, unsure = here(next_day)
   return epoch, unsure
end

-- why a value is none of the forms
local function refused(value, key, usual)
   local date, after = value:match("^([^ ]*) ?(.*)$")
   if is_date(date) and is_clock(after) then
      bad("date and time apart", "write a T between date and time: " .. key .. "=2026-12-01T18:00")
   elseif time_parts(date) and after ~= "" then
      bad("offset apart", "write the offset without a blank: " .. key .. "=2026-12-01T18:00+01:00")
   elseif is_clock(value) then
      bad("clock time only", "write the date too: " .. key .. "=2026-12-01T18:00")
   elseif is_other_date(date) then
      bad("date in another order", "write year-month-day: " .. key .. "=2026-12-01")
   elseif is_bare(value) then
      bad("no unit", "write " .. key .. "=+36h after the submit, or " .. key .. "=@1796148000 for epoch seconds")
   end
   bad("not a time", usual)
end

-- seconds since 1970, and whether they are unsure for want of the zone
local function read_deadline(value, key, first_submit)
   local usual = "write " .. key .. "=2026-12-01T18:00 or " .. key .. "=+36h"
   if type(value) == "number" then return within(value, key) end
   if type(value) ~= "string" then
      bad("not a time", usual .. "; in JSON a string, or a number of epoch seconds")
   elseif value == "" then
      bad("no value", usual .. ", without a blank after the =")
   end
   local epoch, unsure
   local p, offset = time_parts(value)
   if is_date(value) then
      epoch, unsure = end_of_day(value)
   elseif p then
      epoch, unsure = moment(p, offset, key)
   elseif value:sub(1, 1) == "@" then
      if not whole(value, "@%d+") or #value > 19 then
         bad("not a time", "write whole epoch seconds: " .. key .. "=@1796148000")
      end
      epoch = tonumber(value:sub(2))
   elseif is_relative(value) then
      local ahead = seconds(value:lower():match("^[^+]*%+(.*)$"), key .. "=+36h, +2d12h or +90m")
      epoch = first_submit + ahead
   else
      refused(value, key, usual)
   end
   return within(epoch, key), unsure
end

local function read_consent(value)
   if type(value) == "boolean" then return value end
   local lower = type(value) == "string" and value:lower()
   if lower ~= "yes" and lower ~= "no" then bad("not yes or no", "write requeue=yes or requeue=no") end
   return lower == "yes"
end

local function read_checkpoint(value)
   if type(value) ~= "string" or value == "" then
      bad("no unit", "write a whole number with a unit: checkpoint=15m")
   end
   if seconds(value, "checkpoint=15m or 1h30m") >= MAX_EPOCH then
      bad("out of range", "write how often the job saves itself: checkpoint=15m")
   end
end

local function read_warning(value)
   local usual = "requeue_signal=USR1@2m"
   local name, time
   if type(value) == "string" then name, time = value:match("^([^@]*)@(.*)$") end
   if not name or not SIGNALS[(name:upper():gsub("^SIG", ""))] then
      bad("no signal", "write a signal and how long before the requeue: " .. usual)
   end
   if seconds(time, usual) > 3600 then bad("too long", "a warning of at most an hour can be had: " .. usual) end
end

-- ------------------------------------------------------------------ the comment

-- JSON, only as far as needed: what holds no meaning here is checked and left out. Throws "json" where it is none.
local ESCAPES = { b = "\b", f = "\f", n = "\n", r = "\r", t = "\t", ['"'] = '"', ["\\"] = "\\", ["/"] = "/" }
local OTHER = {}  -- an array, an object or null: no value of ours

local function json_string(text, at)
   local parts = {}
   while true do
      local plain, mark, after = text:match('^([^\1-\31"\\]*)(["\\])()', at)
      if not plain then error("json", 0) end
      parts[#parts + 1] = plain
      if mark == '"' then return table.concat(parts), after end
      local code = text:match("^u(%x%x%x%x)", after)
      if code then
         local number = tonumber(code, 16)
         -- beyond ASCII nothing of ours begins or ends: any sign that is not ASCII will do
         parts[#parts + 1], at = number < 128 and string.char(number) or "\195\191", after + 5
      else
         local plain_escape = ESCAPES[text:sub(after, after)]
         if not plain_escape then error("json", 0) end
         parts[#parts + 1], at = plain_escape, after + 1
      end
   end
end

local function json_number(text, at)
   local digits, after = text:match("^%-?(%d+)()", at)
   if not digits or #digits > 1 and digits:sub(1, 1) == "0" then error("json", 0) end
   local fraction = text:match("^%.%d+()", after)
   local exponent = text:match("^[eE][+-]?%d+()", fraction or after)
   if #digits > 4300 and not fraction and not exponent then error("json", 0) end  -- Python reads no longer ones
   local past = exponent or fraction or after
   return tonumber(text:sub(at, past - 1)), past
end

local LITERALS = { ["true"] = true, ["false"] = false, null = OTHER, NaN = 0 / 0, Infinity = math.huge }

local json_value

-- what stands between brackets; `take(at)` reads one member and gives the place after it
local function json_members(text, at, closing, take)
   at = text:match("^[ \t\n\r]*()", at)
   if text:sub(at, at) == closing then return at + 1 end
   while true do
      at = take(at)
      local mark, after = text:match("^[ \t\n\r]*(.)()", at)
      if mark == closing then return after end
      if mark ~= "," then error("json", 0) end
      at = text:match("^[ \t\n\r]*()", after)
   end
end

-- an object's members go to `found`: name, value
local function json_object(text, at, depth, found)
   return json_members(text, at + 1, "}", function(start)
      if text:sub(start, start) ~= '"' then error("json", 0) end
      local name, after = json_string(text, start + 1)
      after = text:match("^[ \t\n\r]*:[ \t\n\r]*()", after)
      if not after then error("json", 0) end
      local value, past = json_value(text, after, depth + 1)
      if found then found(name, value) end
      return past
   end)
end

json_value = function(text, at, depth)
   if depth > MAX_DEPTH then error("json", 0) end
   local sign = text:sub(at, at)
   if sign == '"' then return json_string(text, at + 1) end
   if sign == "{" then return OTHER, json_object(text, at, depth) end
   if sign == "[" then
      return OTHER, json_members(text, at + 1, "]", function(start)
         local _, past = json_value(text, start, depth + 1)
         return past
      end)
   end
   local minus = text:match("^%-Infinity()", at)
   if minus then return -math.huge, minus end
   local word, after = text:match("^(%a+)()", at)
   if word then
      if LITERALS[word] == nil then error("json", 0) end
      return LITERALS[word], after
   end
   return json_number(text, at)
end

local function keep(found, name, value)
   found[name] = found[name] or {}
   table.insert(found[name], { value })
end

-- which of our keys a name is; nil: none. "deadline" whatever the site calls it
local function our_key(name, key)
   name = name:lower()
   if OTHER_KEYS[name] then return name end
   return name == key:lower() and "deadline" or nil
end

local function json_values(text, key)
   if #text > MAX_JSON_CHARS then return nil end
   local found = {}
   local good, past = pcall(json_object, text, 1, 1, function(name, value)
      local ours = our_key(name, key)
      if ours then keep(found, ours, value) end
   end)
   if good and past == #text + 1 then return found end
   if not good and past ~= "json" then error(past, 0) end
   return nil
end

local function token_values(text, key)
   local found, tokens = {}, {}
   for token in text:gmatch("[^,;%s\28-\31]+") do tokens[#tokens + 1] = token end
   for at, token in ipairs(tokens) do
      local name, value = token:match("^([^=]*)=(.*)$")
      local ours = name and our_key(name, key)
      if ours == "deadline" then
         local after = tokens[at + 1]
         keep(found, ours, after and torn(value, after) and value .. " " .. after or value)
      elseif ours then
         keep(found, ours, value)
      end
   end
   return found
end

-- the blanks of Unicode, in UTF-8, as plain ones
local function plain_blanks(text)
   if not text:find("[\194\225\226\227]") then return text end
   text = text:gsub("\194[\133\160]", " "):gsub("\225\154\128", " "):gsub("\227\128\128", " ")
   return (text:gsub("\226\128[\128-\138\168\169\175]", " "):gsub("\226\129\159", " "))
end

-- What a comment claims: the deadline (seconds since 1970) or nil; a list of refusals, each with key, code and text;
-- whether the deadline is relative; and whether its zone is unknown.
function tias_slurm.read(text, first_submit)
   local key = tias_slurm.settings.key
   local lower, refusals = text:lower(), {}
   local holds = false
   for name in pairs({ [key:lower()] = true, requeue = true, checkpoint = true, requeue_signal = true }) do
      holds = holds or lower:find(name .. "=", 1, true) or lower:find(name .. '"', 1, true)
   end
   if not holds then return nil, refusals end
   local blanks = plain_blanks(text)
   local body = blanks:find("^[%s\28-\31]*{.*}[%s\28-\31]*$") and text:match("{.*}")  -- blanks inside of JSON stay
   local found = body and json_values(body, key) or token_values(blanks, key)
   local function read(name, shown, reader)
      local values = found[name]
      if not values then return nil end
      local good, first, second = pcall(function()
         if #values > 1 then bad("two keys", "write " .. shown .. "= once only") end
         return reader(values[1][1], key, first_submit)
      end)
      if good then return first, second end
      if type(first) ~= "table" then error(first, 0) end
      local code = name == "deadline" and first.code or name .. ": " .. first.code
      refusals[#refusals + 1] = { key = name, code = code, text = first.text }
   end
   local deadline, unsure = read("deadline", key, read_deadline)
   read("requeue", "requeue", read_consent)
   read("checkpoint", "checkpoint", read_checkpoint)
   read("requeue_signal", "requeue_signal", read_warning)
   return deadline, refusals, unsure
end

-- Whether all names of a comma list are allowed. What is not known, as a default that slurmctld fills in later, may be.
local function allowed(names, list)
   if type(names) ~= "string" or names == "" or not list or #list == 0 then return true end
   local known = {}
   for _, name in ipairs(list) do known[name] = true end
   for name in (names .. ","):gmatch("([^,]*),") do
      if not known[name] then return false end
   end
   return true
end

-- Why the site does not take a deadline; nil: it may. `who`: account, qos, partition and user of the job, as far as
-- they are known; `unsure`: the zone is not known, so the time is not looked at.
function tias_slurm.admit(deadline, first_submit, who, unsure)
   local settings = tias_slurm.settings
   local window = deadline - first_submit
   if window <= 0 and not unsure then
      return { key = "deadline", code = "already past", text = "the deadline is not after the submit; write a later one" }
   end
   who = who or {}
   for _, of in ipairs({ { "account", who.account, settings.accounts }, { "QOS", who.qos, settings.qos },
      { "partition", who.partition, settings.partitions }, { "user", who.user, settings.users } }) do
      if not allowed(of[2], of[3]) then
         return { key = "deadline", code = of[1] .. " may not", text = string.format(
            "this site takes no deadlines from this %s; leave it out", of[1]) }
      end
   end
   if unsure then return nil end
   if window < settings.min_window_s then
      return { key = "deadline", code = "too near", text = string.format(
         "this site takes deadlines from %g s after the submit; write a later one", settings.min_window_s) }
   elseif settings.max_window_s and window > settings.max_window_s then
      return { key = "deadline", code = "too far", text = string.format(
         "this site takes deadlines up to %g s after the submit; write a nearer one", settings.max_window_s) }
   end
end

-- ------------------------------------------------------------------ Slurm

-- the first field that is there; a field that this release of Slurm does not have is none
local function field(of, ...)
   for _, name in ipairs({ ... }) do
      local good, value = pcall(function() return of[name] end)
      if good and type(value) == "string" and value ~= "" then return value end
   end
end

local function default_partition(part_list)
   for name, part in pairs(part_list or {}) do
      local good, is = pcall(function() return part.flag_default end)
      if good and (is == 1 or is == true) then return name end
   end
end

-- One line to the user for each key that is not taken; whether the deadline is among them.
local function tell(comment, first_submit, who)
   local settings = tias_slurm.settings
   local deadline, refusals, unsure = tias_slurm.read(comment, first_submit)
   local no = deadline and tias_slurm.admit(deadline, first_submit, who(), unsure)
   if no then table.insert(refusals, 1, no) end
   local refuse = false
   for _, refusal in ipairs(refusals) do
      local name = refusal.key == "deadline" and settings.key or refusal.key
      refuse = refuse or refusal.key == "deadline"
      slurm.log_user("%s", string.format("%s= in the comment is not taken: %s", name, refusal.text))
   end
   return refuse
end

local function check(comment, first_submit, who)
   if type(comment) ~= "string" or comment == "" then return slurm.SUCCESS end
   local good, refuse = pcall(tell, comment, first_submit, who)
   if not good then
      pcall(slurm.log_info, "%s", "tias.lua: a comment was not checked: " .. tostring(refuse))
   elseif refuse and tias_slurm.settings.refuse then
      return slurm.ESLURM_INVALID_TIME_VALUE or slurm.ERROR
   end
   return slurm.SUCCESS
end

function tias_slurm.submit(job_desc, part_list)
   return check(job_desc.comment, os.time(), function()
      return {
         account = field(job_desc, "account", "default_account"),
         qos = field(job_desc, "qos", "default_qos"),
         partition = field(job_desc, "partition") or default_partition(part_list),
         user = field(job_desc, "user_name"),
      }
   end)
end

-- A deadline after the job's submit is read from there on, as the daemon does.
function tias_slurm.modify(job_desc, job_rec)
   local comment = job_desc.comment
   if type(comment) ~= "string" then return slurm.SUCCESS end
   local good, submit = pcall(function() return job_rec.submit_time end)
   return check(comment, good and tonumber(submit) or os.time(), function()
      return {
         account = field(job_desc, "account") or field(job_rec, "account"),
         qos = field(job_desc, "qos") or field(job_rec, "qos"),
         partition = field(job_desc, "partition") or field(job_rec, "partition"),
         -- slurmctld gives the owner's name with the change, whoever makes it, and with the job seldom
         user = field(job_rec, "user_name") or job_desc.user_id == job_rec.user_id and field(job_desc, "user_name") or nil,
      }
   end)
end

function slurm_job_submit(job_desc, part_list, submit_uid)
   return tias_slurm.submit(job_desc, part_list)
end

function slurm_job_modify(job_desc, job_rec, part_list, modify_uid)
   return tias_slurm.modify(job_desc, job_rec)
end

return slurm and slurm.SUCCESS or 0
