// From floats to every storage type that files are written in, with the scales that make the squared error small.
#pragma once
#include <cstdint>

namespace olv {

// One row of k elements, whole blocks of the type. The values are finite and fit the type.
using QuantizeRow = void (*)(int type, const float* x, int64_t k, uint8_t* to);

// The loops for an instruction set. All of them write the same bytes.
QuantizeRow quantize_row(const char* isa);

// Whether floats can become that type here.
bool can_quantize(int type);

// The largest magnitude that a value may have in that type.
float largest_value(int type);

}  // namespace olv
