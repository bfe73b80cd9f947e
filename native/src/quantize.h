// Quantizers: floats to every storage type that files are written in, with scales that minimize the squared error.
#pragma once
#include <cstdint>

namespace olv {

// One row of k elements, whole blocks of the type. The values are finite and fit the type.
using QuantizeRow = void (*)(int type, const float* x, int64_t k, uint8_t* to);

// The quantizers for an instruction set. All write the same bytes.
QuantizeRow quantize_row(const char* isa);

// Whether there is a quantizer for the type.
bool can_quantize(int type);

// The largest magnitude that the type can hold.
float largest_value(int type);

}  // namespace olv
