// Quantizers: floats to every storage type that files are written in, with scales that minimize the squared error.
#pragma once
#include <cstdint>

namespace olv {

// One row of k elements, whole blocks of the type. The values are finite and fit the type.
using QuantizeRow = void (*)(int type, const float* x, int64_t k, uint8_t* to);

// The quantizers of each instruction set. All write the same bytes.
void plain_quantize_row(int type, const float* x, int64_t k, uint8_t* to);
#if defined(__x86_64__)
void avx2_quantize_row(int type, const float* x, int64_t k, uint8_t* to);
void avx512_quantize_row(int type, const float* x, int64_t k, uint8_t* to);
#endif

// Whether there is a quantizer for the type.
bool can_quantize(int type);

// The largest magnitude that the type can hold.
float largest_value(int type);

}  // namespace olv
