import ctypes
def library():
    return ctypes.CDLL("/tmp/k/l.so")
