mod calls;
mod failing;
mod registries;
mod templates;
