-- Health of a Program. A Program is stalled if it is not valid.
-- Argo CD provides only the base functions and the library `table` of Lua.

local status = obj.status or {}
local conditions = {}
for _, condition in ipairs(status.conditions or {}) do
  conditions[condition.type] = condition
end

if obj.metadata.deletionTimestamp ~= nil then
  return { status = "Progressing", message = "waiting for the deletion" }
end
if conditions["Ready"] == nil and status.artifact == nil then
  return { status = "Progressing", message = "waiting for the first reconciliation" }
end
if status.observedGeneration ~= nil and status.observedGeneration ~= obj.metadata.generation then
  return { status = "Progressing", message = "waiting for the reconciliation of generation " .. obj.metadata.generation }
end
if conditions["Ready"] == nil then
  -- The Pulumi Kubernetes Operator sets no conditions.
  return { status = "Healthy", message = "the artifact is available" }
end
if conditions["Stalled"] ~= nil and conditions["Stalled"].status == "True" then
  return { status = "Degraded", message = conditions["Stalled"].message }
end
if conditions["Ready"].status == "True" then
  return { status = "Healthy", message = conditions["Ready"].message }
end
return { status = "Progressing", message = conditions["Ready"].message }
