/* A hash that tells arrays and files apart; it does not protect against deliberate collisions. */
#ifndef WN_BASE_FINGERPRINT_H
#define WN_BASE_FINGERPRINT_H

#include <stddef.h>

/* 64-bit FNV-1a as 16 hexadecimal digits. */
void wn_fingerprint(const void *data, size_t bytes, char out[24]);

#endif
