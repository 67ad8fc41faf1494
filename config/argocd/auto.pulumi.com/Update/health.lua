-- Health of an Update. The Update of a failed run is degraded. If the outcome of the run is unknown, the Update is also
-- degraded, because a user must resolve the run.
-- Argo CD provides only the base functions and the library `table` of Lua.

local status = obj.status or {}
local conditions = {}
for _, condition in ipairs(status.conditions or {}) do
  conditions[condition.type] = condition
end

local function has(kind, value)
  return conditions[kind] ~= nil and conditions[kind].status == value
end

-- The Pulumi Kubernetes Operator sets empty messages.
local function message_or(default)
  for _, message in ipairs({ status.message or "", conditions["Failed"].message, conditions["Progressing"].message }) do
    if message ~= "" then
      return message
    end
  end
  return default
end

if obj.metadata.deletionTimestamp ~= nil then
  return { status = "Progressing", message = "waiting for the deletion" }
end
if conditions["Progressing"] == nil or conditions["Failed"] == nil or conditions["Complete"] == nil then
  return { status = "Progressing", message = "waiting for the first reconciliation" }
end
if status.observedGeneration ~= nil and status.observedGeneration ~= obj.metadata.generation then
  return { status = "Progressing", message = "waiting for the reconciliation of generation " .. obj.metadata.generation }
end
if has("Complete", "True") and has("Failed", "True") then
  return { status = "Degraded", message = message_or("the run failed") }
end
if has("Complete", "True") then
  return { status = "Healthy", message = message_or("the run succeeded") }
end
if has("Progressing", "Unknown") then
  return { status = "Degraded", message = message_or("the outcome of the run is unknown") }
end
local message = message_or("the run is open")
local summary = status.progress ~= nil and status.progress.summary or ""
if has("Progressing", "True") and summary ~= "" then
  message = message .. ": " .. summary
end
return { status = "Progressing", message = message }
