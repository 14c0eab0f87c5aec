package main

func Example() {
	main()
	// Output:
	// to ada@example.com: order_confirmation {"ID":1,"Email":"ada@example.com"}
	// sent: 1
}
