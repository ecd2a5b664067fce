/* Tells arrays and files apart; no protection against intent. */
#ifndef WN_BASE_FINGERPRINT_H
#define WN_BASE_FINGERPRINT_H

#include <stddef.h>

/* 64-bit FNV-1a as 16 hexadecimal digits. */
void wn_fingerprint(const void *data, size_t bytes, char out[24]);

#endif
