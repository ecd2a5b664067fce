/* AMX (emulate.h): a thread's eight tiles, each of up to 16 rows of up to 64 bytes. */

struct wide_tiles {
  bool on;
  uint8_t rows[8];
  uint16_t bytes[8]; /* of a row */
  union {
    uint8_t u8[16][64];
    int8_t i8[16][64];
    uint16_t u16[16][32];
    int32_t i32[16][16];
    float f[16][16];
  } tile[8];
};
extern _Thread_local struct wide_tiles wide_tiles; /* processor.c */

void wide_tiles_configure(const void *config);
void wide_tiles_release(void);
void wide_tile_zero(int t);
void wide_tile_load(int t, const void *p, int64_t stride);
void wide_tile_store(int t, void *p, int64_t stride);
void wide_tile_dpbssd(int c, int a, int b);
void wide_tile_dpbf16(int c, int a, int b);

#define _tile_loadconfig(config) wide_tiles_configure(config)
#define _tile_release() wide_tiles_release()
#define _tile_zero(t) wide_tile_zero(t)
#define _tile_loadd(t, p, stride) wide_tile_load((t), (p), (stride))
#define _tile_stored(t, p, stride) wide_tile_store((t), (p), (stride))
#define _tile_dpbssd(c, a, b) wide_tile_dpbssd((c), (a), (b))
#define _tile_dpbf16ps(c, a, b) wide_tile_dpbf16((c), (a), (b))
