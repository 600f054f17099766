"""From a photo to the model's input tensor, the reference for the C++ code on the board."""
