//! What a runner and the command line both know of function pods: the runner's flags, the names of
//! labels and annotations, and the templates. It has no I/O, and nothing that only Linux has.

mod flags;
pub mod names;
pub mod template;
pub mod times;

pub use self::flags::{
    BASE_POD_TEMPLATE, Flags, FunctionConfigTags, MirrorFlags, PodBackend, PodConnect, REMOVED_FLAGS,
};
