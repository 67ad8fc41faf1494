const { zone } = require("./zone.js");

exports.zone = zone;
