"""x"""
def filter_groups_on(*a):
    raise NotImplementedError
