/* Includes REAL_FILE for float storage and for double storage. No include guard: see ref.h. */
#define REAL float
#define NAME(f) f##_f32
#include REAL_FILE
#undef REAL
#undef NAME
#define REAL double
#define NAME(f) f##_f64
#include REAL_FILE
#undef REAL
#undef NAME
