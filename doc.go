// Package outbox is a transactional outbox for applications that use GORM.
//
// The app writes a message in the same transaction as the business fact that causes it. A processor delivers it after
// the commit, at least once, through a transport. A provider that is down can neither hang nor abort the business
// operation, and a process that dies right after the commit loses nothing.
package outbox
