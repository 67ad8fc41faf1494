-- Health of a Workspace. As in kstatus, a stalled Workspace has failed, and a reconciling Workspace is in progress.
-- Argo CD provides only the base functions and the library `table` of Lua.

local status = obj.status or {}
local conditions = {}
for _, condition in ipairs(status.conditions or {}) do
  conditions[condition.type] = condition
end

local function is_true(kind)
  return conditions[kind] ~= nil and conditions[kind].status == "True"
end

if conditions["Ready"] == nil then
  return { status = "Progressing", message = "waiting for the first reconciliation" }
end
if status.observedGeneration ~= nil and status.observedGeneration ~= obj.metadata.generation then
  return { status = "Progressing", message = "waiting for the reconciliation of generation " .. obj.metadata.generation }
end
if is_true("Stalled") then
  return { status = "Degraded", message = conditions["Stalled"].message }
end
if is_true("Ready") and obj.metadata.deletionTimestamp == nil then
  return { status = "Healthy", message = conditions["Ready"].message }
end
if is_true("Ready") then
  return { status = "Progressing", message = "waiting for the deletion" }
end
return { status = "Progressing", message = conditions["Ready"].message }
