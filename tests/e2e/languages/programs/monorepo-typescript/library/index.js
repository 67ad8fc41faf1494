exports.text = "one";
