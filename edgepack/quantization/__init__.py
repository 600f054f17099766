"""A float model -> a QDQ model on 8-bit integers, calibrated on photos.

model, photos ─► FloatNetwork ─► equalised ─► ranges, rounded weights ─► QDQ model
                                                 ▲                           │
                                                 └── left in float ◄── measured
"""
