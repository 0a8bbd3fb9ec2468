//! What holds for one function, out of flags, files and FunctionConfigs. Pure.
