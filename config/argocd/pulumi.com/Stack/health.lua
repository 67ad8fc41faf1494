-- Health of a Stack. As in kstatus, a stalled Stack has failed, and a reconciling Stack is in progress. In contrast to
-- kstatus, a Stack with a failed run is degraded until the next run starts, although the controller retries the run.
-- Argo CD provides only the base functions and the library `table` of Lua.

local status = obj.status or {}
local conditions = {}
for _, condition in ipairs(status.conditions or {}) do
  conditions[condition.type] = condition
end

local function message_of(kind)
  local condition = conditions[kind]
  return condition ~= nil and condition.message or ""
end

local function is_true(kind)
  return conditions[kind] ~= nil and conditions[kind].status == "True"
end

-- Returns both messages, or only the second message if it starts with the first message. Messages are UTF-8 and do not
-- contain the byte 255.
local function joined(first, second)
  if second >= first and second < first .. "\255" then
    return second
  end
  return first .. "; " .. second
end

local is_deleting = obj.metadata.deletionTimestamp ~= nil
local ready = message_of("Ready")

if obj.spec.suspend == true and not is_deleting then
  if ready == "" then
    return { status = "Suspended", message = "suspended" }
  end
  return { status = "Suspended", message = joined("suspended", ready) }
end
if conditions["Ready"] == nil then
  return { status = "Progressing", message = "waiting for the first reconciliation" }
end
if status.observedGeneration ~= nil and status.observedGeneration ~= obj.metadata.generation then
  return { status = "Progressing", message = "waiting for the reconciliation of generation " .. obj.metadata.generation }
end
if is_true("Stalled") then
  return { status = "Degraded", message = joined(ready, message_of("Stalled")) }
end
if is_true("Reconciling") and conditions["Reconciling"].reason == "RetryingAfterFailure" then
  return { status = "Degraded", message = joined(ready, message_of("Reconciling")) }
end
if is_true("Reconciling") then
  return { status = "Progressing", message = joined(ready, message_of("Reconciling")) }
end
if is_deleting then
  return { status = "Progressing", message = "waiting for the deletion" }
end
if is_true("Ready") then
  return { status = "Healthy", message = ready }
end
return { status = "Progressing", message = ready }
